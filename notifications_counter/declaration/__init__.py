"""What is counted, for whom, and where."""

from .declaration import Declaration as Declaration
from .declaration import counters_of_table as counters_of_table
from .declaration import declarations as declarations
