"""The configuration: strict sections, studies and what they expand to, checks, run ids."""
