"""What tests share: configs, ways to run commands, result files, user code that misbehaves, slow twins."""
