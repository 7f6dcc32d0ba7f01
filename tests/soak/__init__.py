"""An hour of kills and resumes, for somebody's machine and not for CI: python -m tests.soak --minutes 60."""
