"""The style of all figures: seaborn's theme, without the imports of all of seaborn."""

import subprocess
import sys

PROGRAM = """
import sys
import matplotlib
from triplepoint.figures import style

theme = {"context": "paper", "style": "ticks", "rc": style._RC}
taken = style.styled(lambda: dict(matplotlib.rcParams))()
assert not [name for name in sys.modules if name.partition(".")[0] in ("seaborn", "scipy")]
import seaborn
matplotlib.rcdefaults()
seaborn.set_theme(**theme)
assert seaborn.kdeplot and taken == dict(matplotlib.rcParams), "the theme of seaborn imported as usual"
assert style.styled(lambda: dict(matplotlib.rcParams))() == taken and "seaborn" in sys.modules
"""


def test_styled_is_the_theme_of_seaborn_without_the_rest_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
