"""Many runs from one file: what they are, who does which, and what came out."""
