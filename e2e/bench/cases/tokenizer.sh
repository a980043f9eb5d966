# Encoding, decoding and loading of tokenizers.
gobench tokenizer -bench . -benchtime 0.5s ./gateway/internal/tokenizer
