package chat_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/chat"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// now is the time at which the goldens were rendered.
var now = time.Date(2026, 11, 5, 9, 7, 3, 0, time.UTC)

// golden is one line of a golden file: a template, or a conversation with what transformers made of it by the template before it.
type golden struct {
	Name, Source string
	Conversation *string
	Out          *string
	Raised       *string
	Err          string
	Message      string
}

// TestGoldens compares with transformers over the conversations of testdata. CHAT_GOLDENS names further files, fresh from the script there.
func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("golden files: %v, %v", files, err)
	}
	files = append(files, filepath.SplitList(os.Getenv("CHAT_GOLDENS"))...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { compareFile(t, file) })
	}
}

func compareFile(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines io.Reader = f
	if strings.HasSuffix(file, ".gz") {
		if lines, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(nil, 16<<20)
	var template *chat.Template
	var name string
	compared := 0
	for scanner.Scan() {
		var g golden
		if err := json.Unmarshal(scanner.Bytes(), &g); err != nil {
			t.Fatal(err)
		}
		if g.Conversation == nil {
			name = g.Name
			template, err = chat.NewTemplate(g.Source, map[string]string{"bos_token": "<BOS>", "eos_token": "<EOS>"})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			continue
		}
		compared++
		got, err := template.Render(t.Context(), decodeConversation(t, *g.Conversation))
		compareGolden(t, name, g, got, err)
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	if compared < 10 {
		t.Errorf("%d conversations compared", compared)
	}
}

func compareGolden(t *testing.T, name string, g golden, got string, err error) {
	t.Helper()
	var raised *jinja.RaisedError
	var failed *jinja.Error
	var refused *chat.ConversationError
	switch {
	case g.Out != nil:
		if err != nil {
			t.Errorf("%s over %s\nfailed: %v\nwant %q", name, *g.Conversation, err, *g.Out)
		} else if got != *g.Out {
			t.Errorf("%s over %s\ngot  %q\nwant %q", name, *g.Conversation, got, *g.Out)
		}
	case g.Raised != nil:
		if !errors.As(err, &raised) || raised.Message != *g.Raised {
			t.Errorf("%s over %s\ngot  %q, %v\nwant raise_exception(%q)", name, *g.Conversation, got, err, *g.Raised)
		}
	case strings.Contains(*g.Conversation, `"continue_final_message": true`) && errors.As(err, &refused):
	case !errors.As(err, &failed) || failed.Class != g.Err:
		t.Errorf("%s over %s\ngot  %q, %v\nwant %s: %s", name, *g.Conversation, got, err, g.Err, g.Message)
	}
}

func decodeConversation(t *testing.T, text string) chat.Conversation {
	t.Helper()
	v, err := jinja.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	given := v.(*jinja.Dict)
	dicts := func(key string) []*jinja.Dict {
		list, ok := given.Get(key)
		if !ok {
			return nil
		}
		out := []*jinja.Dict{}
		for _, item := range list.(*jinja.List).Items {
			out = append(out, item.(*jinja.Dict))
		}
		return out
	}
	flag := func(key string) bool {
		v, _ := given.Get(key)
		return v == jinja.Bool(true)
	}
	c := chat.Conversation{
		Messages: dicts("messages"), Tools: dicts("tools"), Documents: dicts("documents"),
		AddGenerationPrompt: flag("add_generation_prompt"), ContinueFinalMessage: flag("continue_final_message"), Now: now,
	}
	if kwargs, ok := given.Get("kwargs"); ok {
		c.Kwargs = kwargs.(*jinja.Dict)
	}
	return c
}

func TestConversationErrors(t *testing.T) {
	template, err := chat.NewTemplate("{% for m in messages %}{{ m.content | trim }}{% endfor %}", nil)
	if err != nil {
		t.Fatal(err)
	}
	silent, err := chat.NewTemplate("fixed text", nil)
	if err != nil {
		t.Fatal(err)
	}
	message := func(content jinja.Value) []*jinja.Dict {
		m := &jinja.Dict{}
		m.Set("role", jinja.Str("assistant"))
		if content != nil {
			m.Set("content", content)
		}
		return []*jinja.Dict{m}
	}
	kwargs := &jinja.Dict{}
	kwargs.Set("messages", jinja.None)
	cases := map[string]struct {
		template     *chat.Template
		conversation chat.Conversation
		field        string
	}{
		"prompt and continuation":        {template, chat.Conversation{Messages: message(jinja.Str("a")), AddGenerationPrompt: true, ContinueFinalMessage: true}, "continue_final_message"},
		"nothing to continue":            {template, chat.Conversation{ContinueFinalMessage: true}, "continue_final_message"},
		"no content":                     {template, chat.Conversation{Messages: message(nil), ContinueFinalMessage: true}, "continue_final_message"},
		"content is a number":            {template, chat.Conversation{Messages: message(jinja.Int(1)), ContinueFinalMessage: true}, "continue_final_message"},
		"no text part":                   {template, chat.Conversation{Messages: message(&jinja.List{}), ContinueFinalMessage: true}, "continue_final_message"},
		"template does not show content": {silent, chat.Conversation{Messages: message(jinja.Str("a")), ContinueFinalMessage: true}, "continue_final_message"},
		"variable given twice":           {template, chat.Conversation{Messages: message(jinja.Str("a")), Kwargs: kwargs}, "chat_template_kwargs.messages"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.conversation.Now = now
			_, err := c.template.Render(t.Context(), c.conversation)
			var refused *chat.ConversationError
			if !errors.As(err, &refused) || refused.Field != c.field {
				t.Errorf("got %v, want a ConversationError about %s", err, c.field)
			}
		})
	}
	if _, err := template.Render(t.Context(), chat.Conversation{Messages: message(jinja.Str("a"))}); err == nil {
		t.Error("a conversation without a time rendered")
	}
	if _, err := chat.NewTemplate("{{", nil); err == nil {
		t.Error("a broken template parsed")
	}
}

func TestContinueFinalMessage(t *testing.T) {
	cases := map[string]struct{ source, content, want string }{
		"kept as it is":                 {"<{{ messages[-1].content }}>", "  Once upon \n", "<  Once upon \n"},
		"trimmed":                       {"<{{ messages[-1].content | trim }}>", "  Once upon \n", "<Once upon"},
		"marker of an earlier message":  {"{% for m in messages %}<{{ m.content }}>{% endfor %}", "x", "<x><x"},
		"what follows is not printed":   {"<{{ messages[-1].content }}{{ eos_token }}>", "a", "<a"},
		"special token before the text": {"{{ bos_token }}{{ messages[-1].content }}", "a", "<BOS>a"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			template, err := chat.NewTemplate(c.source, map[string]string{"bos_token": "<BOS>", "eos_token": "<EOS>"})
			if err != nil {
				t.Fatal(err)
			}
			m := &jinja.Dict{}
			m.Set("content", jinja.Str(c.content))
			messages := []*jinja.Dict{m}
			if strings.Contains(c.source, "for m") {
				messages = append(messages, m)
			}
			got, err := template.Render(t.Context(), chat.Conversation{Messages: messages, ContinueFinalMessage: true, Now: now})
			if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
			if content, _ := m.Get("content"); content != jinja.Str(c.content) {
				t.Errorf("the caller's message became %v", content)
			}
		})
	}
}
