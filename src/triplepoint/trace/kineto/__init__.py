"""From the bytes of a Kineto trace to rows of integers."""
