from triplepoint.manifest import *  # moved; removed once every importer follows
