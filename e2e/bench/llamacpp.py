"""Prints what llama.cpp reaches on the shape that the Go benchmark Qwen3/layers=28 has: that of Qwen3-0.6B in bfloat16 with
random weights, which this script writes as a GGUF file, without an adapter and with one of rank 32 on every linear layer of
the transformer, not merged (llama.cpp cannot put one on an output head that shares the embedding's weights).

A line is ENGINE KIND DTYPE TOKENS_PER_SECOND: `forward` is one sequence of 512 tokens in one batch of which only the last
token's logits are asked for, `decode` one sequence token by token behind a context of 256, `decode8` eight such sequences at
once; a kind that ends in `-lora` is with the adapter. Keys and values have llama.cpp's default type, float16; all else is
its default too. It gives raw logits; what turns them into log-probabilities is not counted. One warm-up, then the mean of
the repetitions, as Go's benchmarks take it, with as many threads as this process may use processors, as the Go benchmarks
have."""

import ctypes
import os
import pathlib
import sys
import tempfile
import time

import gguf
import llama_cpp
import numpy

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 28, 1024, 3072, 16, 8, 128, 151936
TOKENS, CONTEXT, SEQUENCES, RANK = 512, 256, 8, 32
FORWARD_REPEATS, DECODE_STEPS = 3, 32
LINEAR = {  # rows and columns
    "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM), "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN), "ffn_down": (HIDDEN, FFN),
}


def new_file(path):
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_matrix(writer, random, name, rows, columns):
    """Adds random bfloat16 values of either sign between 2^-6 and 2^-5, those of the Go benchmark."""
    bits = random.integers(0, 1 << 16, size=(rows, columns), dtype=numpy.uint16)
    bits &= 0x807F
    bits |= 121 << 7
    writer.add_tensor(name, bits.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def write_model(path):
    random = numpy.random.default_rng(1)
    writer = new_file(path)
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    add_matrix(writer, random, "token_embd.weight", VOCABULARY, HIDDEN)
    writer.add_tensor("output_norm.weight", numpy.ones(HIDDEN, numpy.float32))
    for i in range(LAYERS):
        for name, width in ("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", HEAD_DIM), ("attn_k_norm", HEAD_DIM):
            writer.add_tensor(f"blk.{i}.{name}.weight", numpy.ones(width, numpy.float32))
        for name, (rows, columns) in LINEAR.items():
            add_matrix(writer, random, f"blk.{i}.{name}.weight", rows, columns)
    finish(writer)


def write_adapter(path):
    random = numpy.random.default_rng(2)
    writer = new_file(path)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", RANK)
    for i in range(LAYERS):
        for name, (rows, columns) in LINEAR.items():
            add_matrix(writer, random, f"blk.{i}.{name}.weight.lora_a", RANK, columns)
            add_matrix(writer, random, f"blk.{i}.{name}.weight.lora_b", rows, RANK)
    finish(writer)


class Engine:
    def __init__(self, model, threads, vocabulary=VOCABULARY):
        self.vocabulary = vocabulary
        self.parameters = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(model), self.parameters)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {model}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = SEQUENCES * TOKENS
        options.n_batch = options.n_ubatch = TOKENS
        options.n_seq_max = SEQUENCES
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context")
        self.batch = llama_cpp.llama_batch_init(TOKENS, 0, 1)

    def adapt(self, path):
        adapter = llama_cpp.llama_adapter_lora_init(self.model, os.fsencode(path))
        if not adapter:
            raise RuntimeError(f"llama.cpp does not load {path}")
        adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
        if llama_cpp.llama_set_adapters_lora(self.context, adapters, 1, (ctypes.c_float * 1)(1.0)) != 0:
            raise RuntimeError("llama.cpp does not use the adapter")

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def run(self, rows):
        """Computes (token, position, sequence, whether logits are wanted), and waits; gives the logits' arguments of the maximum."""
        for i, (token, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, position, wanted
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
        self.batch.n_tokens = len(rows)
        if (status := llama_cpp.llama_decode(self.context, self.batch)) != 0:
            raise RuntimeError(f"llama_decode gives {status}")
        llama_cpp.llama_synchronize(self.context)
        best = []
        for i, row in enumerate(rows):
            if row[3]:
                logits = self.logits(i)
                best.append(int(logits.argmax()))
                if not numpy.isfinite(logits[best[-1]]):
                    raise RuntimeError("logits are not finite")
        return best

    def logits(self, i):
        return numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, i), (self.vocabulary,))

    def forward(self):
        rows = [(i * 7919 % VOCABULARY, i, 0, i == TOKENS - 1) for i in range(TOKENS)]
        seconds = []
        for _ in range(1 + FORWARD_REPEATS):
            self.clear()
            start = time.perf_counter()
            self.run(rows)
            seconds.append(time.perf_counter() - start)
        return TOKENS * FORWARD_REPEATS / sum(seconds[1:])

    def decode(self, sequences):
        self.clear()
        tokens = []
        for s in range(sequences):
            tokens += self.run([((s + i) * 7919 % self.vocabulary, i, s, i == CONTEXT - 1) for i in range(CONTEXT)])
        seconds = []
        for step in range(1 + DECODE_STEPS):
            start = time.perf_counter()
            tokens = self.run([(tokens[s], CONTEXT + step, s, True) for s in range(sequences)])
            seconds.append(time.perf_counter() - start)
        return sequences * DECODE_STEPS / sum(seconds[1:])


@llama_cpp.llama_log_callback
def errors(level, text, data):
    if level == 4:
        sys.stderr.write(text.decode(errors="replace"))


def start(threads):
    llama_cpp.llama_log_set(errors, None)
    llama_cpp.llama_backend_init()
    print(f"# llama.cpp, {threads} threads:", llama_cpp.llama_print_system_info().decode(), flush=True)


def main():
    threads = len(os.sched_getaffinity(0))
    start(threads)
    with tempfile.TemporaryDirectory() as folder:
        model, adapter = pathlib.Path(folder, "model.gguf"), pathlib.Path(folder, "adapter.gguf")
        write_model(model)
        write_adapter(adapter)
        engine = Engine(model, threads)
        for suffix in "", "-lora":
            if suffix:
                engine.adapt(adapter)
            print(f"llama.cpp forward{suffix} bfloat16", round(engine.forward(), 2), flush=True)
            print(f"llama.cpp decode{suffix} bfloat16", round(engine.decode(1), 2), flush=True)
            print(f"llama.cpp decode8{suffix} bfloat16", round(engine.decode(SEQUENCES), 2), flush=True)


if __name__ == "__main__":
    main()
