"""Why a job is slow: what-if replay of its operations, and the cause of each slow GPU from its sensors."""
