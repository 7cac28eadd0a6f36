"""Test equipment: libraries of GPU vendors and a sysfs tree that behave as a scenario says; see `node.fake_node`."""
