"""Chakra execution traces of MLCommons: every published version of the schema read, the newest written."""
