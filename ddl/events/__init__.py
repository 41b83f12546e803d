"""Event schedules in virtual time: who computes, waits and is served when. NumPy and SciPy alone."""
