package tokenizer

import (
	"path/filepath"
	"strings"
	"testing"
)

// english is about 1 MB of English prose made from words in their usual
// proportions, with the punctuation and the names that a cache does not know.
func english() string {
	words := strings.Fields(`the of and a to in is was he for it with as his on be at by I this had not are but from or have an they
which one you were her all she there would their we him been has when who will more no if out so said what up its about into than them
can only other new some could time these two may then do first any my now such like our over man me even most made after also did many
before must through back years where much your way well down should because each just those people Mr. how too little state good very
make world still own see men work long get here between both life being under never day same another know while last might us great old
year off come since against go came right used take three remarkable circumstances nevertheless; "understanding," (especially) notwithstanding`)
	var b strings.Builder
	state := uint32(1)
	for b.Len() < 1<<20 {
		state = state*1664525 + 1013904223
		at := int(state>>16) % len(words)
		at = at * int(state>>8&0xff) / 256 // the words in front more often
		b.WriteString(words[at])
		switch state >> 24 % 29 {
		case 0:
			b.WriteString(". ")
		case 1:
			b.WriteString(",\n")
		default:
			b.WriteByte(' ')
		}
	}
	return b.String()
}

func BenchmarkEncode(b *testing.B) {
	text := english()
	for _, name := range []string{"qwen", "llama3", "spm", "unigram"} {
		b.Run(name, func(b *testing.B) {
			tok := goldenTokenizer(b, name)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := tok.Encode(text, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("cases", func(b *testing.B) { // many scripts, few repeats
		tok := goldenTokenizer(b, "qwen")
		var all strings.Builder
		for _, c := range goldenCases(b, filepath.Join("testdata", "goldens", "qwen.cases.json.gz")) {
			all.WriteString(c.Text)
		}
		b.SetBytes(int64(all.Len()))
		for b.Loop() {
			if _, err := tok.Encode(all.String(), false); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	text := english()
	for _, name := range []string{"qwen", "spm"} {
		b.Run(name, func(b *testing.B) {
			tok := goldenTokenizer(b, name)
			ids, err := tok.Encode(text, false)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				tok.Decode(ids, true)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	data := readGzip(b, filepath.Join("testdata", "goldens", "qwen.tokenizer.json.gz"))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Parse(data); err != nil {
			b.Fatal(err)
		}
	}
}
