package openai

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tokenizer"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	goleak.VerifyTestMain(m)
}

const (
	modelName  = inferencetest.ModelName
	modelAlias = inferencetest.ModelAlias
	modelDir   = inferencetest.ModelDir
)

// world is a server with the schemas that its answers must keep to, and what tests of this package look at in it.
type world struct {
	testing.TB
	*schemas
	inside  *inferencetest.World
	core    *runs.Core
	service *Service
	auth    *keys.Authenticator
	model   *catalog.Model
	backend *fake.Backend
	url     string
	client  *http.Client
	key     string // sent with every request
}

// says has all answers from here on say something.
func (w *world) says(texts ...string) { w.inside.Says(texts...) }

type options struct {
	backend string // fields of the backend's configuration, each followed by a comma
	chat    string
	keys    string // path of a keys file
	dir     string // of the model; "" = modelDir
	change  func(*runs.Config)
}

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	w := &world{TB: t, schemas: loadSchemas(t)}
	w.inside = inferencetest.New(t, inferencetest.Options{Backend: o.backend, Chat: o.chat, Keys: o.keys, Dir: o.dir, Change: o.change, Routes: func(s *inference.Service) []func(gin.IRouter) {
		w.service = New(s)
		return []func(gin.IRouter){w.service.Register}
	}})
	w.core, w.auth, w.model, w.backend, w.url, w.client = w.inside.Core, w.inside.Auth, w.inside.Model, w.inside.Backend, w.inside.URL, w.inside.Client
	return w
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// send sends a request and gives status, header and body.
func (w *world) send(method, path, body string) (int, http.Header, []byte) {
	w.Helper()
	header := http.Header{}
	if w.key != "" {
		header.Set("Authorization", "Bearer "+w.key)
	}
	return w.inside.On(w.TB).Send(method, path, body, header)
}

// fields are a request body in the making.
type fields map[string]any

func (f fields) with(more fields) fields {
	return fields(inferencetest.Fields(f).With(inferencetest.Fields(more)))
}

func (f fields) text() string { return inferencetest.Fields(f).Text() }

func asking(content string) fields {
	return fields{"model": modelName, "messages": []fields{{"role": "user", "content": content}}, "max_tokens": 24, "seed": 7}
}

func completing(prompt any) fields {
	return fields{"model": modelName, "prompt": prompt, "max_tokens": 24, "seed": 7}
}

// The answers, as a client reads them.
type (
	chatAnswerBody struct {
		ID      string `json:"id"`
		Created int64  `json:"created"`
		Model   string `json:"model"`
		Choices []struct {
			Index   int `json:"index"`
			Message struct {
				Content   string       `json:"content"`
				Reasoning string       `json:"reasoning_content"`
				ToolCalls []calledTool `json:"tool_calls"`
			} `json:"message"`
			Delta struct {
				Role    string `json:"role"`
				Content string `json:"content"`
			} `json:"delta"`
			Logprobs *struct {
				Content []chatLogprob `json:"content"`
			} `json:"logprobs"`
			FinishReason *string `json:"finish_reason"`
		} `json:"choices"`
		Usage *inference.Usage `json:"usage"`
	}
	completionAnswerBody struct {
		ID      string             `json:"id"`
		Choices []completionChoice `json:"choices"`
		Usage   *inference.Usage   `json:"usage"`
	}
)

// chat asks for a whole answer and validates it.
func (w *world) chat(f fields) chatAnswerBody {
	w.Helper()
	var out chatAnswerBody
	w.answer("/v1/chat/completions", "CreateChatCompletionResponse", f, &out)
	return out
}

func (w *world) complete(f fields) completionAnswerBody {
	w.Helper()
	var out completionAnswerBody
	w.answer("/v1/completions", "CreateCompletionResponse", f, &out)
	return out
}

func (w *world) answer(path, schema string, f fields, into any) {
	w.Helper()
	status, _, b := w.send(http.MethodPost, path, f.text())
	if status != http.StatusOK {
		w.Fatalf("%s: %d %s", path, status, b)
	}
	w.ok(json.Unmarshal(b, into))
	w.check(w, schema, withoutNulls(parsed(w, string(b))))
}

// withoutNulls takes away the nulls that OpenAI sends in completions though its document does not allow them: the first token of an echoed prompt, and the reason in chunks before the last.
func withoutNulls(v any) any {
	choices, _ := v.(map[string]any)["choices"].([]any)
	for _, c := range choices {
		choice := c.(map[string]any)
		if _, isText := choice["text"]; !isText {
			continue
		}
		if choice["finish_reason"] == nil {
			choice["finish_reason"] = "stop"
		}
		if l, ok := choice["logprobs"].(map[string]any); ok {
			for _, name := range []string{"token_logprobs", "top_logprobs"} {
				if list := l[name].([]any); len(list) > 0 && list[0] == nil {
					l[name] = list[1:]
				}
			}
		}
	}
	return v
}

// events reads a stream; the last event must be [DONE] unless it is an error.
func (w *world) events(path, schema string, f fields) []string {
	w.Helper()
	status, header, b := w.send(http.MethodPost, path, f.with(fields{"stream": true}).text())
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		w.Fatalf("%s: %d %s %s", path, status, header.Get("Content-Type"), b)
	}
	var out []string
	for _, event := range strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok {
			w.Fatalf("not an event: %q", event)
		}
		out = append(out, data)
	}
	if last := out[len(out)-1]; last == "[DONE]" {
		out = out[:len(out)-1]
	} else if !strings.HasPrefix(last, `{"error"`) {
		w.Fatalf("the stream ends with %q", last)
	}
	for i, e := range out {
		if i >= 16 && i < len(out)-16 && i%16 != 0 { // the events of a long stream are alike in the middle, and the race detector makes checks slow
			continue
		}
		if v := parsed(w, e); v.(map[string]any)["error"] == nil {
			if schema != "" {
				w.check(w, schema, withoutNulls(v))
			}
		} else {
			w.check(w, "ErrorResponse", v)
		}
	}
	return out
}

// failure is an error as a client reads it.
type failure struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// refused demands an error with a status, param and code ("" = null) whose message has all the words.
func (w *world) refused(method, path, body string, status int, param, code string, words ...string) {
	w.Helper()
	got, header, b := w.send(method, path, body)
	if got != status {
		w.Fatalf("status %d, want %d: %s", got, status, b)
	}
	w.check(w, "ErrorResponse", parsed(w, string(b)))
	var answer struct {
		Error failure `json:"error"`
	}
	w.ok(json.Unmarshal(b, &answer))
	value := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	if e := answer.Error; value(e.Param) != param || value(e.Code) != code {
		w.Errorf("param %q, code %q, want %q, %q: %s", value(e.Param), value(e.Code), param, code, b)
	}
	for _, word := range words {
		if !strings.Contains(answer.Error.Message, word) {
			w.Errorf("%q does not say %q", answer.Error.Message, word)
		}
	}
	if header.Get("X-Request-Id") == "" {
		w.Error("no request id")
	}
}

// session makes a session of an owner.
func (w *world) session(owner string) string {
	w.Helper()
	s, err := w.core.CreateSession(w.Context(), runs.NewSession{Owner: owner})
	w.ok(err)
	return s.ID
}

func (w *world) await(owner string, s runs.Submitted, err error) *runs.Outcome {
	w.Helper()
	w.ok(err)
	out, err := w.core.Wait(w.Context(), owner, s.RequestID, 3*time.Minute)
	w.ok(err)
	if out.Failure != nil {
		w.Fatalf("%s: %s", s.RequestID, out.Failure.Message)
	}
	return out
}

// adapter makes a run and trains it for some steps, so that it answers otherwise than the base model.
func (w *world) adapter(owner, session string, number int64, steps int) string {
	w.Helper()
	s, err := w.core.CreateRun(w.Context(), runs.NewRun{Owner: owner, SessionID: session, ModelSeq: number, BaseModel: modelName, LoRA: runs.LoRAConfig{Rank: 4, TrainAttn: true, TrainMLP: true, TrainUnembed: true}, UserMetadata: json.RawMessage(`{"purpose":"test"}`)})
	run := w.await(owner, s, err).CreatedRun.RunID
	w.train(owner, run, 1, steps)
	return run
}

func (w *world) train(owner, run string, seq int64, steps int) {
	w.Helper()
	tokens := []int32{5, 6, 7, 8}
	targets, weights := make([]int64, len(tokens)), make([]float32, len(tokens))
	for i := range tokens {
		targets[i], weights[i] = 9, 1
	}
	for range steps {
		s, err := w.core.ForwardBackward(w.Context(), runs.ForwardBackward{Operation: runs.Operation{Owner: owner, RunID: run, Seq: seq}, Loss: "cross_entropy", Data: []runs.Datum{{Tokens: tokens, Inputs: map[string]runs.Tensor{"target_tokens": {Ints: targets}, "weights": {Floats: weights}}}}})
		w.await(owner, s, err)
		s, err = w.core.OptimStep(w.Context(), runs.OptimStep{Operation: runs.Operation{Owner: owner, RunID: run, Seq: seq + 1}, Adam: plugins.AdamParams{LearningRate: 0.5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}})
		w.await(owner, s, err)
		seq += 2
	}
}

// save writes a sampler checkpoint and gives its path.
func (w *world) save(owner, run string, seq int64, name string) string {
	w.Helper()
	s, err := w.core.SaveWeightsForSampler(w.Context(), runs.SaveWeightsForSampler{Operation: runs.Operation{Owner: owner, RunID: run, Seq: seq}, Name: name})
	return w.await(owner, s, err).Saved.Path
}

// keysFile makes a keys file and gives its path and the keys of the names.
func keysFile(t testing.TB, names ...string) (string, map[string]string) {
	return inferencetest.KeysFile(t, names...)
}

// eventually waits for a condition that must come true.
func (w *world) eventually(condition func() bool) { w.inside.Eventually(condition) }

func encoded(t testing.TB, tok *tokenizer.Tokenizer, text string) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, false)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// day is how long responses are stored here.
const day = 24 * time.Hour
