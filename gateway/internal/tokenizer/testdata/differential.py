"""Writes random tokenizers and texts with what Hugging Face `tokenizers` makes of them.

    pip install tokenizers==0.23.2
    python testdata/differential.py OUT_DIR [SEED [TOKENIZERS [CASES]]] [-- FILE...]

Each OUT_DIR/NAME has a tokenizer.json and a cases.json.gz (a list of text, ids,
decoded, decoded_skip_special). With FILEs, existing tokenizer.json files are used
instead of random ones. TestDifferential reads such folders from the directory
named by TOKENIZER_CASES; testdata/odd holds a small set of them.
"""
import gzip
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = """the quick brown fox jumps over a lazy dog and then some more words that repeat the the and and in in of of to to
don't I'll we've they're he'd I'm it's DON'T WE'VE naïve café coöperate Straße größer élève señor Ελληνικά Σίσυφος Москва
привет мир שלום عربي हिन्दी क्षि ไทย 日本語 中文字符 한국어 조선말 12 345 6789 3.14 1,000 0x1F http://a.b/c?d=e&f foo_bar() {x: y}
return function class import print lambda <tag> </tag> "quoted" 'single' `code` #hash @at $100 50% a+b=c a*b x^2 ~tilde |pipe|""".split()
ODD = ("\u00a0 \u2003 \u3000 \u200b \u200d \ufeff \u0085 \u2028 \u2029 \x00 \x01 \x7f \x1c \ud7ff \ue000 \ufffd \uffff \U00010000 \U0010ffff \u0301 \u0308 \u0327 \u0345 "
       "\u1100\u1161\u11a8 가 각 é e\u0301 \u1e9b\u0323 ﬁ ſ K Å İ ı ß ẞ ŉ Ⅷ ½ ① ٣ ५ 𝟘 𝔘 👩\u200d💻 👨\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪 👍🏽 ☺️ ▁ ▁▁ Ġ Ċ Ã <0x41> <0xFF> "
       "'s 'S 'ſ 'LL 'Re ' '' \u0f73 \u0f71\u0f72 \u0958 \u2126 \u212b 㐀 㿿 \u0344 \u0390 \u1fd3 \U0001d15e \U0001100b0 \u0cca \u09cb \u30ab\u3099 \u1c89 \ua7cb \U00016ea0 \U00011938 \u32ff").split(" ")
SPACES = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "\r", " \n", "\n ", "      ", "\u00a0", "\u3000", "\x0b", "\x0c", "\x85"]


def text(rng, extra):
    out, n = [], rng.choice([0, 1, 2, 3, 5, 8, 15, 40])
    for _ in range(n):
        k = rng.random()
        if k < 0.35:
            out.append(rng.choice(WORDS))
        elif k < 0.5:
            out.append(rng.choice(SPACES))
        elif k < 0.62:
            out.append(rng.choice(ODD))
        elif k < 0.7:
            out.append(chr(rng.randrange(32, 127)))
        elif k < 0.76:
            c = rng.choice([rng.randrange(0x110000), rng.randrange(0x3000), rng.randrange(0x300, 0x370), rng.randrange(0x1e000, 0x20000)])
            out.append("?" if 0xD800 <= c < 0xE000 else chr(c))
        elif k < 0.86 and extra:
            t = rng.choice(extra)
            out.append(t if rng.random() < 0.8 else t[: rng.randrange(len(t) + 1)])
        elif k < 0.9:
            out.append(rng.choice(["\u0301", "a", "\u0308\u0301", "👍", " ", "\n", "0", "!", "\u0300\u0345\u0327", "aab", "ab"]) * rng.randrange(1, 40))
        else:
            out.append(" " + rng.choice(WORDS))
    return "".join(out)


PATTERNS = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"\s+", r"[\p{Han}]+", r"\w+|[^\w\s]+", r"\d", r"[^\P{L}a-f]+", r"\b", r"(?<=a)b|^x|y$|\R?"[:14],
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{L}&&[^\p{Han}]]+", r"[[:alpha:]]+", r"(?i)straße|k|å", r".", r"a*", r"(a|b)+?", r"[^\x00-\x{7f}]{2,3}", r"\h+", "\u2581", r"x|",
]
BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]


def some_normalizer(rng, depth=0):
    return rng.choice([
        normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD, normalizers.Lowercase, normalizers.StripAccents, normalizers.Nmt,
        lambda: normalizers.Strip(left=rng.random() < 0.5, right=rng.random() < 0.5),
        lambda: normalizers.Prepend(rng.choice(["▁", "ab", " "])),
        lambda: normalizers.Replace(rng.choice([" ", "a", "  ", "e\u0301"]), rng.choice(["▁", "", "bb", " "])),
        lambda: normalizers.Replace(Regex(rng.choice([r"\s+", r" {2,}", r"[aeiou]", r"\p{M}", r"``|''"])), rng.choice([" ", "", "x"])),
        lambda: normalizers.Sequence([some_normalizer(rng, depth + 1) for _ in range(rng.randrange(4))]) if depth < 2 else normalizers.NFC(),
    ])()


def some_pre_tokenizer(rng, depth=0):
    return rng.choice([
        lambda: pre_tokenizers.Split(Regex(rng.choice(PATTERNS)), rng.choice(BEHAVIORS), rng.random() < 0.3),
        lambda: pre_tokenizers.Split(Regex(rng.choice(PATTERNS[:7])), "isolated", False),
        lambda: pre_tokenizers.Split(rng.choice([" ", "a", "the", "▁", "\n"]), rng.choice(BEHAVIORS), rng.random() < 0.3),
        lambda: pre_tokenizers.ByteLevel(rng.random() < 0.4, use_regex=rng.random() < 0.6),
        lambda: pre_tokenizers.Metaspace("▁", rng.choice(["always", "first", "never"]), rng.random() < 0.7),
        lambda: pre_tokenizers.Digits(rng.random() < 0.5),
        lambda: pre_tokenizers.Punctuation(rng.choice(BEHAVIORS)),
        pre_tokenizers.Whitespace, pre_tokenizers.WhitespaceSplit, pre_tokenizers.BertPreTokenizer,
        lambda: pre_tokenizers.CharDelimiterSplit(rng.choice([" ", "a", "-"])),
        lambda: pre_tokenizers.FixedLength(rng.randrange(1, 9)),
        lambda: pre_tokenizers.Sequence([some_pre_tokenizer(rng, depth + 1) for _ in range(rng.randrange(1, 4))]) if depth < 2 else pre_tokenizers.Digits(True),
    ])()


def some_decoder(rng, depth=0):
    return rng.choice([
        decoders.ByteLevel, decoders.ByteFallback, decoders.Fuse,
        lambda: decoders.Replace(rng.choice(["▁", "a", "ab", " "]), rng.choice([" ", "", "xy"])),
        lambda: decoders.Strip(rng.choice([" ", "a", "▁"]), rng.randrange(3), rng.randrange(3)),
        lambda: decoders.Metaspace("▁", rng.choice(["always", "first", "never"])),
        lambda: decoders.BPEDecoder(rng.choice(["</w>", "a", "Ġ"])),
        lambda: decoders.Sequence([some_decoder(rng, depth + 1) for _ in range(rng.randrange(1, 5))]) if depth < 2 else decoders.Fuse(),
    ])()


def llama_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def some_tokenizer(rng):
    corpus = [" ".join(rng.choices(WORDS, k=30)) for _ in range(60)] + [text(rng, []) for _ in range(60)]
    specials = ["<unk>", "<s>", "</s>"]
    kind = rng.choice(["byte", "byte", "char", "spm", "unigram", "unigram"])
    flip = lambda p=0.5: rng.random() < p
    if kind == "unigram":
        tok = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=rng.randrange(300, 1200), special_tokens=specials, unk_token="<unk>", max_piece_length=rng.choice([4, 16]), show_progress=False)
    else:
        options = {}
        if kind == "spm" or kind == "char" and flip():
            options["unk_token"] = "<unk>"
            options["fuse_unk"] = flip()
        if kind == "char" and flip(0.3):
            options["continuing_subword_prefix"] = "##"
        if kind == "char" and flip(0.3):
            options["end_of_word_suffix"] = "</w>"
        tok = Tokenizer(models.BPE(**options))
        more = {k: options[k] for k in ("continuing_subword_prefix", "end_of_word_suffix") if k in options}
        alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "byte" and flip(0.8) else []
        trainer = trainers.BpeTrainer(vocab_size=rng.randrange(300, 1500), special_tokens=specials, initial_alphabet=alphabet, limit_alphabet=rng.choice([60, 400, 1000]), show_progress=False, **more)
    if kind == "byte":
        if flip():
            tok.normalizer = rng.choice([normalizers.NFC, normalizers.NFKC, normalizers.NFD])()
        split = pre_tokenizers.Split(Regex(rng.choice(PATTERNS)), "isolated" if flip(0.8) else rng.choice(BEHAVIORS), flip(0.1))
        tok.pre_tokenizer = rng.choice([
            pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(flip(0.2), use_regex=flip(0.1))]),
            pre_tokenizers.ByteLevel(flip()),
            pre_tokenizers.Sequence([pre_tokenizers.Digits(flip()), pre_tokenizers.ByteLevel(flip())]),
        ])
        tok.decoder = decoders.ByteLevel()
    else:
        style = rng.randrange(3)
        if style == 0:
            tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            tok.decoder = llama_decoder()
            if kind == "unigram" or flip():
                tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", rng.choice(["always", "first", "never"]), flip())
        elif style == 1:
            scheme = rng.choice(["always", "first", "never"])
            tok.normalizer = rng.choice([normalizers.NFKC, normalizers.NFC, normalizers.Lowercase])()
            tok.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, flip(0.7))
            tok.decoder = decoders.Metaspace("▁", scheme)
        else:
            if flip():
                tok.normalizer = some_normalizer(rng)
            tok.pre_tokenizer = some_pre_tokenizer(rng)
            tok.decoder = some_decoder(rng)
    tok.train_from_iterator(corpus, trainer)
    extra = ["<|im_start|>", "<|im_end|>", "<|im", "<think>", " lead", "Word", "é", "ſt", "\u0301x", "  ", "日本", "aa", "AB"]
    rng.shuffle(extra)
    for content in extra[: rng.randrange(9)]:
        tok.add_tokens([AddedToken(content, single_word=flip(0.3), lstrip=flip(0.3), rstrip=flip(0.3), normalized=flip(0.4), special=flip(0.4))])
    spec = json.loads(tok.to_str())
    if kind != "byte" and flip(0.7):
        spec["model"]["byte_fallback"] = True
        have = spec["model"]["vocab"]
        for b in range(256):
            name = f"<0x{b:02X}>"
            if flip(0.97) or flip(0.5):
                if kind == "unigram":
                    if all(name != h[0] for h in have):
                        have.append([name, -rng.random() * 20])
                else:
                    have.setdefault(name, max(have.values()) + 1)
        spec["added_tokens"] = [t for t in spec["added_tokens"] if t["id"] < 3]
    if kind == "byte" and flip(0.3):
        spec["model"]["ignore_merges"] = True
    if kind == "unigram":
        for v in spec["model"]["vocab"]:
            if flip(0.2):
                v[1] = -float(rng.randrange(1, 12))
    tok = Tokenizer.from_str(json.dumps(spec))
    if flip(0.4):
        parts = rng.choice([["<s>", "$A"], ["$A", "</s>"], ["<s>", "$A", "</s>"], ["<s>", "<s>", "$A", "</s>"]])
        template = processors.TemplateProcessing(single=parts, special_tokens=[(s, tok.token_to_id(s)) for s in ("<s>", "</s>") if tok.token_to_id(s) is not None])
        tok.post_processor = processors.Sequence([processors.ByteLevel(), template]) if flip() else template
    return tok, extra + specials


def row(tok, t, ids):
    return {"text": t, "ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False), "decoded_skip_special": tok.decode(ids)}


def write(path, tok, extra, rng, cases):
    os.makedirs(path, exist_ok=True)
    rows = []
    for _ in range(cases):
        t = text(rng, extra)
        try:
            ids = tok.encode(t).ids
            shuffled = ids[:]
            rng.shuffle(shuffled)
            new = [row(tok, t, ids), row(tok, None, shuffled)]
        except BaseException:  # the library panics on some texts, for instance in its Strip decoder
            continue
        rows += new
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        f.write(tok.to_str())
    with gzip.GzipFile(os.path.join(path, "cases.json.gz"), "wb", mtime=0) as f:
        f.write(json.dumps(rows).encode())


def main():
    argv, files = sys.argv[1:], []
    if "--" in argv:
        at = argv.index("--")
        argv, files = argv[:at], argv[at + 1:]
    out, seed, count, cases = (argv + ["1", "20", "200"][len(argv) - 1:])[:4]
    rng = random.Random(int(seed))
    for i, name in enumerate(files or range(int(count))):
        if files:
            tok = Tokenizer.from_file(name)
            extra = [t.content for t in tok.get_added_tokens_decoder().values()]
        else:
            while True:
                try:
                    tok, extra = some_tokenizer(rng)
                    tok.encode("probe")
                    break
                except BaseException as e:  # a combination the library itself refuses
                    print("skipped:", str(e)[:100], file=sys.stderr)
        write(os.path.join(out, f"{seed}-{i:03d}"), tok, extra, rng, int(cases))


main()
