from triplepoint.errors import UserError as UserError
from triplepoint.library import load as load
from triplepoint.library import simulate as simulate
from triplepoint.library import trace as trace
from triplepoint.predictions import predict as predict
from triplepoint.recorded.in_loop import record as record

__version__: str
MEASUREMENT_VERSION: int

def make_callable(package: str) -> None: ...
