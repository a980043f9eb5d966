# Submission of operations.
gobench runs -bench . -benchtime 0.5s ./gateway/internal/runs
