package inference

import (
	"bytes"
	"crypto/sha256"
	"reflect"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
)

func tinyChat(t testing.TB) *catalog.Model {
	t.Helper()
	const dir = "../../../configs/models/tiny-chat"
	cfg := config.DefaultModel()
	cfg.Name, cfg.Path = "tinsmith/tiny-chat", dir
	m, err := catalog.Load(cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// kept is a memory as a job gives it.
func kept(m *catalog.Model, tokens []int32) []byte {
	job := &Job{Model: m, Prompt: Prompt{memory: &recollection{last: &Memory{from: branch{1, 2}, tokens: tokens, rendered: printedOf("hello"), thoughts: true, ended: -1}}}}
	return job.Memory()
}

// TestMemory: what is stored comes back; where the tokens mean another text by now it is not used.
func TestMemory(t *testing.T) {
	m := tinyChat(t)
	tokens, err := m.Tokenizer.Encode("Hello, world.", false)
	if err != nil {
		t.Fatal(err)
	}
	stored := kept(m, tokens)
	got, err := DecodeMemory(stored)
	if err != nil {
		t.Fatal(err)
	}
	want := &Memory{from: branch{1, 2}, tokens: tokens, rendered: printedOf("hello"), thoughts: true, ended: -1, text: sha256.Sum256([]byte("Hello, world."))}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	b := budget.For(t.Context(), "", budget.Limits{})
	defer b.End()
	if !got.fits(b, m) {
		t.Error("it does not fit the model that it was made with")
	}
	got.tokens[0]++
	if got.fits(b, m) {
		t.Error("it fits, though its tokens are another text")
	}
	if !got.rendered.begins("hello, you") || got.rendered.begins("hell") || got.rendered.begins("Hello, you") {
		t.Error("what begins with the printed text is not told from what does not")
	}
	if nothing, err := DecodeMemory(nil); nothing != nil || err != nil {
		t.Errorf("%v, %v", nothing, err)
	}
	if none := (&Job{}).Memory(); none != nil {
		t.Errorf("%v", none)
	}
}

// FuzzMemory reads anything as a stored memory: it is refused, or is what it would be stored as.
func FuzzMemory(f *testing.F) {
	m := tinyChat(f)
	whole := kept(m, []int32{5, 6, 7})
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add([]byte{memoryForm})
	f.Add([]byte{9})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := DecodeMemory(b)
		if err != nil || got == nil {
			return
		}
		again := (&Job{Model: m, Prompt: Prompt{memory: &recollection{last: got}}}).Memory()
		once, err := DecodeMemory(again)
		if err != nil {
			t.Fatal(err)
		}
		once.text = got.text
		if !reflect.DeepEqual(once, got) && len(got.tokens) > 0 {
			t.Errorf("%+v is not %+v: %x", once, got, bytes.TrimSpace(again))
		}
	})
}
