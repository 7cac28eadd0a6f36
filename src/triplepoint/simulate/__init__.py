"""The simulated cluster: what a training step costs in time and memory, from the model, the layout and the machines."""

import triplepoint

triplepoint.make_callable(__name__)  # triplepoint.simulate(point) of the library
