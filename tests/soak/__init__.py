"""An hour of kills and resumes; not in CI: python -m tests.soak --minutes 60."""
