"""Chakra execution traces of MLCommons: reader of every published version of the schema, writer of the newest."""
