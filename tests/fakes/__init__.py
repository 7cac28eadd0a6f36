"""Fake libraries of GPU vendors and a fake sysfs tree, controlled by a scenario; see `node.fake_node`."""
