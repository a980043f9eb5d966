# Durable commits.
gobench store -bench . -benchtime 0.5s ./gateway/internal/store
