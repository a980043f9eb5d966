# The engine on a model of 41 million parameters: decoding and clock cycles of several runs.
gobench engine -bench "Decode|Train" -benchtime 2x ./backends/internal/engine
