package cmd

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// object is a JSON object in a request.
type object map[string]any

// caller sends requests with one credential.
type caller struct {
	*world
	key string
}

// send gives the status and the body of the answer.
func (c caller) send(method, path string, body any) (int, string) {
	c.Helper()
	var content []byte
	switch b := body.(type) {
	case nil:
	case []byte:
		content = b
	default:
		var err error
		content, err = json.Marshal(b)
		c.ok(err)
	}
	r, err := http.NewRequestWithContext(c.Context(), method, c.url+path, bytes.NewReader(content))
	c.ok(err)
	r.Header.Set("X-Api-Key", c.key)
	r.Header.Set("X-Request-Id", "req_of_a_test") // which some answers tell again
	answer, err := http.DefaultClient.Do(r)
	c.ok(err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	c.ok(err)
	return answer.StatusCode, string(b)
}

// demand is send of a request that must succeed.
func (c caller) demand(method, path string, body any) string {
	c.Helper()
	status, answer := c.send(method, path, body)
	if status/100 != 2 {
		c.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	return answer
}

// field reads one text of an answer.
func (c caller) field(answer, name string) string {
	c.Helper()
	var fields map[string]any
	c.ok(json.Unmarshal([]byte(answer), &fields))
	text, _ := fields[name].(string)
	return text
}

// future waits for the operation that an answer is about.
func (c caller) future(answer string) string {
	c.Helper()
	id := c.field(answer, "request_id")
	status, out := c.send(http.MethodPost, "/api/v1/retrieve_future", object{"request_id": id})
	if status != http.StatusOK || strings.Contains(out, `"error"`) {
		c.Fatalf("%s: %d %s", id, status, out)
	}
	return id
}

// belongings is one of everything that somebody has: the ids, by kind.
type belongings struct {
	session, run, sampler, operation, sample, name, turns, response string
}

func (b belongings) path(kind string) string { return "tinker://" + b.run + "/" + kind + "/" + b.name }

// settle makes one of everything.
func (c caller) settle() belongings {
	c.Helper()
	post := func(path string, body any) string { return c.demand(http.MethodPost, "/api/v1/"+path, body) }
	b := belongings{name: "secret-name", turns: "asked-" + c.key[len(c.key)/2:]}
	c.demand(http.MethodPost, "/v1/chat/completions", object{"model": served, "messages": []any{object{"role": "user", "content": "hi"}}, "max_tokens": 1, "session_id": b.turns})
	b.response = c.field(c.demand(http.MethodPost, "/v1/responses", object{"model": served, "input": "hi", "max_output_tokens": 1}), "id")
	b.session = c.field(post("create_session", object{"user_metadata": object{"secret": "of a session"}}), "session_id")
	created := post("create_model", object{"session_id": b.session, "model_seq_id": 0, "base_model": served, "lora_config": object{"rank": 4}, "user_metadata": object{"secret": "of a run"}})
	b.operation = c.future(created)
	b.run = c.field(created, "model_id")
	for seq, kind := range []string{"save_weights", "save_weights_for_sampler", "save_weights_external"} {
		c.future(post(kind, object{"model_id": b.run, "path": b.name, "seq_id": seq + 1, "user_metadata": object{"secret": "of a checkpoint"}}))
	}
	b.sampler = c.field(post("create_sampling_session", object{"session_id": b.session, "sampling_session_seq_id": 0, "base_model": served}), "sampling_session_id")
	b.sample = c.future(post("asample", sampling(b.sampler, 0)))
	return b
}

func sampling(sampler string, seq int) object {
	return object{"sampling_session_id": sampler, "seq_id": seq, "num_samples": 1, "prompt": object{"chunks": []any{object{"type": "encoded_text", "tokens": []int{5}}}}, "sampling_params": object{"max_tokens": 1}}
}

// pass is the body of a forward_backward.
func pass(t *testing.T, run string) []byte {
	t.Helper()
	b, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{ModelId: run, SeqId: 50, LossFn: "cross_entropy"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// probe is a request that names something of somebody: what may be another's, and what is the caller's own.
type probe struct {
	name string
	path string
	body any
}

// strangerProbes are, for each route that takes an id, the requests in which it can be another's. A route without an id has none.
func strangerProbes(t *testing.T, theirs, mine belongings) map[string][]probe {
	run, session := theirs.run, theirs.session
	of := func(path string) []probe { return []probe{{"", path, nil}} }
	with := func(path string, body any) []probe { return []probe{{"", path, body}} }
	checkpoints := func(suffix string, body any) []probe {
		var list []probe
		for _, kind := range []string{"weights", "sampler_weights", "external_weights"} {
			list = append(list, probe{kind, "/api/v1/training_runs/" + run + "/checkpoints/" + kind + "/" + theirs.name + suffix, body})
		}
		return list
	}
	model := func(path string, body func(model string) object) []probe {
		var list []probe
		for name, model := range map[string]string{"run": "tinker://" + run, "bare run": run, "checkpoint": theirs.path("sampler_weights"), "base and checkpoint": served + ";" + theirs.path("sampler_weights"), "weights": theirs.path("weights")} {
			list = append(list, probe{name, path, body(model)})
		}
		return list
	}
	chat := func(m string) object {
		return object{"model": m, "messages": []any{object{"role": "user", "content": "hi"}}, "max_tokens": 1}
	}
	complete := func(m string) object { return object{"model": m, "prompt": "hi", "max_tokens": 1} }
	describe := func(prefix string) []probe {
		return []probe{{"run", prefix + "tinker://" + run, nil}, {"checkpoint", prefix + theirs.path("sampler_weights"), nil}, {"escaped", prefix + strings.ReplaceAll(theirs.path("sampler_weights"), "/", "%2F"), nil}}
	}
	save := object{"model_id": run, "path": "x", "seq_id": 50}
	api := "POST /api/v1/"
	probes := map[string][]probe{
		"GET /healthz": nil, "GET /readyz": nil, "GET /health": nil, "GET /ping": nil, "GET /metrics": nil, "GET /version": nil, "GET /api/v1/healthz": nil,
		"GET /": nil, "HEAD /": nil, "GET /page/*file": nil, "HEAD /page/*file": nil, // the same files for everybody
		api + "client/config": nil, api + "client/dynamic_config": nil, api + "auth/token": nil, "GET /api/v1/auth/apikey/me": nil, "DELETE /api/v1/auth/apikey/me": nil,
		"GET /api/v1/get_server_capabilities": nil, api + "create_session": nil, api + "create_custom_loss": nil, api + "tinsmith/import": nil,
		"GET /api/v1/sessions": nil, "GET /api/v1/training_runs": nil, "GET /api/v1/checkpoints": nil, "GET /api/v1/audit": nil, "GET /api/v1/billing/usage/events": nil,
		"GET /api/v1/billing/usage/checkpoints/current": nil, "GET /api/v1/tinsmith/runs": nil, "GET /api/v1/tinsmith/usage": nil, "GET /api/v1/tinsmith/imports": nil, "GET /api/v1/tinsmith/models/files": nil, "GET /api/v1/tinsmith/environment": nil, "POST /api/v1/tinsmith/backends/drain": nil, "GET /v1/models": nil, "GET /oai/api/v1/models": nil,
		// Links have no caller; what is signed for somebody ends with his key, which has tests of its own.
		"GET /api/v1/files/:token": of("/api/v1/files/" + run), "GET /api/v1/archives/:token": of("/api/v1/archives/" + run), "GET /api/v1/traces/:token": of("/api/v1/traces/" + session),

		api + "telemetry":                            with("/api/v1/telemetry", object{"session_id": session, "events": []any{}}),
		api + "session_heartbeat":                    with("/api/v1/session_heartbeat", object{"session_id": session}),
		api + "sessions/search":                      with("/api/v1/sessions/search", object{"owner": object{"type": "accessible"}, "session_id": session}),
		"GET /api/v1/sessions/:session":              {{"owned", "/api/v1/sessions/" + session, nil}, {"accessible", "/api/v1/sessions/" + session + "?access_scope=accessible", nil}},
		api + "sessions/:session/finish":             with("/api/v1/sessions/"+session+"/finish", object{"reason": object{"type": "success"}}),
		"PUT /api/v1/sessions/:session/project":      with("/api/v1/sessions/"+session+"/project", object{"project_id": "p"}),
		"GET /api/v1/sessions/:session/trace_export": of("/api/v1/sessions/" + session + "/trace_export"),
		api + "create_model":                         with("/api/v1/create_model", object{"session_id": session, "model_seq_id": 0, "base_model": served, "lora_config": object{"rank": 4}}),
		"GET /api/v1/tinsmith/runs/:run":             of("/api/v1/tinsmith/runs/" + run),
		"GET /api/v1/tinsmith/runs/:run/series":      of("/api/v1/tinsmith/runs/" + run + "/series"),
		"GET /api/v1/tinsmith/runs/:run/cycles":      of("/api/v1/tinsmith/runs/" + run + "/cycles"),
		"GET /api/v1/tinsmith/runs/:run/events":      of("/api/v1/tinsmith/runs/" + run + "/events"),
		"GET /api/v1/tinsmith/events":                of("/api/v1/tinsmith/events?run=" + run),
		api + "tinsmith/runs/:run/metrics":           with("/api/v1/tinsmith/runs/"+run+"/metrics", object{"rows": []any{object{"step": 1, "values": object{"a": 1}}}}),
		api + "get_info":                             with("/api/v1/get_info", object{"model_id": run}),
		api + "unload_model":                         with("/api/v1/unload_model", object{"model_id": run}),
		api + "forward_backward":                     with("/api/v1/forward_backward", pass(t, run)),
		api + "forward": {
			{"protobuf", "/api/v1/forward", pass(t, run)},
			{"JSON", "/api/v1/forward", object{"model_id": run, "seq_id": 50, "forward_input": object{"data": []any{}, "loss_fn": "cross_entropy"}}},
		},
		api + "optim_step":               with("/api/v1/optim_step", object{"model_id": run, "seq_id": 50, "adam_params": object{}}),
		api + "save_weights":             with("/api/v1/save_weights", save),
		api + "save_weights_for_sampler": with("/api/v1/save_weights_for_sampler", save),
		api + "save_weights_external":    with("/api/v1/save_weights_external", save),
		api + "load_weights": {
			{"into theirs", "/api/v1/load_weights", object{"model_id": run, "seq_id": 50, "path": mine.path("weights")}},
			{"a run of theirs", "/api/v1/load_weights", object{"session_id": mine.session, "model_seq_id": 70, "path": theirs.path("weights"), "optimizer": true}},
			{"a run in theirs", "/api/v1/load_weights", object{"session_id": session, "model_seq_id": 70, "path": mine.path("weights")}},
		},
		api + "create_sampling_session": {
			{"in theirs", "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 0, "base_model": served}},
			{"of theirs", "/api/v1/create_sampling_session", object{"session_id": mine.session, "sampling_session_seq_id": 70, "model_path": theirs.path("sampler_weights")}},
			{"of weights of theirs", "/api/v1/create_sampling_session", object{"session_id": mine.session, "sampling_session_seq_id": 70, "model_path": theirs.path("weights")}},
		},
		api + "join_sampling_session":                         with("/api/v1/join_sampling_session", object{"sampling_session_id": theirs.sampler}),
		"GET /api/v1/samplers/:sampler":                       of("/api/v1/samplers/" + theirs.sampler),
		api + "asample":                                       {{"new", "/api/v1/asample", sampling(theirs.sampler, 9)}, {"a repeat", "/api/v1/asample", sampling(theirs.sampler, 0)}},
		api + "retrieve_future":                               {{"operation", "/api/v1/retrieve_future", object{"request_id": theirs.operation}}, {"sample", "/api/v1/retrieve_future", object{"request_id": theirs.sample}}},
		api + "retrieve_futures":                              with("/api/v1/retrieve_futures", object{"target": object{"type": "sampling_session", "sampling_session_id": theirs.sampler, "cloned_sampler_id": 0}, "prev_cursor": 0, "timeout": 0}),
		api + "cancel_future":                                 {{"operation", "/api/v1/cancel_future", object{"request_id": theirs.operation}}, {"sample", "/api/v1/cancel_future", object{"request_id": theirs.sample}}},
		"GET /api/v1/training_runs/:run":                      {{"owned", "/api/v1/training_runs/" + run, nil}, {"accessible", "/api/v1/training_runs/" + run + "?access_scope=accessible", nil}},
		"GET /api/v1/training_runs/:run/checkpoints":          of("/api/v1/training_runs/" + run + "/checkpoints"),
		"GET /api/v1/models/:run/checkpoints":                 of("/api/v1/models/" + run + "/checkpoints"),
		"GET /api/v1/training_runs/:run/checkpoints/:kind":    of("/api/v1/training_runs/" + run + "/checkpoints/" + theirs.name),
		"DELETE /api/v1/training_runs/:run/checkpoints/:kind": of("/api/v1/training_runs/" + run + "/checkpoints/" + theirs.name),

		"GET /api/v1/tinsmith/export": {
			{"run", "/api/v1/tinsmith/export?path=tinker://" + run, nil}, {"bare run", "/api/v1/tinsmith/export?path=" + run, nil}, {"weights", "/api/v1/tinsmith/export?path=" + theirs.path("weights"), nil},
			{"checkpoint", "/api/v1/tinsmith/export?path=" + theirs.path("sampler_weights"), nil}, {"external", "/api/v1/tinsmith/export?path=" + theirs.path("external_weights"), nil},
		},
		"DELETE /api/v1/training_runs/:run/checkpoints/:kind/:name":                    checkpoints("", nil),
		"GET /api/v1/training_runs/:run/checkpoints/:kind/:name/archive":               checkpoints("/archive", nil),
		"POST /api/v1/training_runs/:run/checkpoints/:kind/:name/publish":              checkpoints("/publish", nil),
		"DELETE /api/v1/training_runs/:run/checkpoints/:kind/:name/publish":            checkpoints("/publish", nil),
		"PUT /api/v1/training_runs/:run/checkpoints/:kind/:name/ttl":                   checkpoints("/ttl", object{"ttl_seconds": 5}),
		"GET /api/v1/training_runs/:run/checkpoints/:kind/:name/external_weights_urls": checkpoints("/external_weights_urls", nil),

		"POST /inference/v1/generate": model("/inference/v1/generate", func(m string) object {
			return object{"model": m, "token_ids": []int{5}, "sampling_params": object{"max_tokens": 1}}
		}),
		"POST /tokenize":      model("/tokenize", func(m string) object { return object{"model": m, "prompt": "x"} }),
		"POST /detokenize":    model("/detokenize", func(m string) object { return object{"model": m, "tokens": []int{5}} }),
		"GET /tokenizer_info": {{"run", "/tokenizer_info?model=tinker://" + run, nil}, {"checkpoint", "/tokenizer_info?model=" + theirs.path("sampler_weights"), nil}},
	}
	for _, kind := range []string{"weights", "sampler_weights", "external_weights"} {
		probes[api+"weights_info"] = append(probes[api+"weights_info"], probe{kind, "/api/v1/weights_info", object{"tinker_path": theirs.path(kind)}})
		probes[api+"copy_weights"] = append(probes[api+"copy_weights"], probe{kind, "/api/v1/copy_weights", object{"source_path": theirs.path(kind), "destination_project_id": "p"}})
	}
	probes[api+"copy_weights"] = append(probes[api+"copy_weights"], probe{"into theirs", "/api/v1/copy_weights", object{"source_path": mine.path("weights"), "session_id": session, "model_seq_id": 70}})
	for i, prefix := range []string{"/v1", "/anthropic/v1", "/anthropic/api/v1"} {
		probes["POST "+prefix+"/messages"] = model(prefix+"/messages", chat)
		probes["POST "+prefix+"/messages/count_tokens"] = model(prefix+"/messages/count_tokens", chat)
		probes["POST "+prefix+"/messages/batches"] = nil
		if i > 0 {
			probes["GET "+prefix+"/models"] = nil
			probes["GET "+prefix+"/models/*model"] = describe(prefix + "/models/")
		}
	}
	for _, prefix := range []string{"/v1", "/oai/api/v1"} {
		responses := prefix + "/responses"
		for _, path := range []string{responses, responses + "/input_tokens"} {
			ask := func(change object) object {
				out := object{"model": served, "input": "hi"}
				for key, value := range change {
					out[key] = value
				}
				return out
			}
			probes["POST "+path] = append(model(path, func(m string) object { return ask(object{"model": m}) }), probe{"previous", path, ask(object{"previous_response_id": theirs.response})},
				probe{"item", path, ask(object{"input": []any{object{"type": "item_reference", "id": strings.Replace(theirs.response, "resp_", "msg_", 1) + "00"}}})})
		}
		for _, route := range []string{"GET ", "DELETE "} {
			probes[route+responses+"/:response"] = of(responses + "/" + theirs.response)
		}
		probes["GET "+responses+"/:response/input_items"] = of(responses + "/" + theirs.response + "/input_items")
		probes["POST "+responses+"/:response/cancel"] = of(responses + "/" + theirs.response + "/cancel")
		probes["POST "+responses+"/compact"], probes["GET "+prefix+"/chat/completions"] = nil, nil
		for _, method := range []string{"GET ", "POST ", "DELETE "} { // chat completions are not stored
			probes[method+prefix+"/chat/completions/:completion"] = of(prefix + "/chat/completions/" + theirs.response)
		}
		probes["GET "+prefix+"/chat/completions/:completion/messages"] = of(prefix + "/chat/completions/" + theirs.response + "/messages")
		for _, name := range []string{"embeddings", "moderations", "audio", "images", "files", "uploads", "batches", "fine_tuning", "vector_stores", "assistants", "threads", "conversations"} { // are not served
			for _, method := range []string{"GET ", "POST ", "DELETE "} {
				probes[method+prefix+"/"+name], probes[method+prefix+"/"+name+"/*rest"] = nil, nil
			}
		}
		probes["POST "+prefix+"/chat/completions"] = model(prefix+"/chat/completions", chat)
		probes["POST "+prefix+"/chat/completions/tokens"] = model(prefix+"/chat/completions/tokens", func(m string) object { return object{"model": m, "tokens": []int{5}, "max_tokens": 1} })
		probes["GET "+prefix+"/sessions/*session"] = of(prefix + "/sessions/" + theirs.turns + "/datums")
		probes["DELETE "+prefix+"/sessions/*session"] = of(prefix + "/sessions/" + theirs.turns)
		probes["POST "+prefix+"/completions"] = model(prefix+"/completions", complete)
		probes["GET "+prefix+"/models/*model"] = describe(prefix + "/models/")
	}
	return probes
}

// unknown are ids of the same form of which there is nothing.
func (b belongings) unknown() belongings {
	other := func(id string) string {
		change := map[byte]byte{'0': '1', 'a': 'b', 'A': 'B'}
		first, ok := change[id[0]]
		if !ok {
			first = '0'
			if id[0] >= 'a' {
				first = 'a'
			}
		}
		return string(first) + id[1:]
	}
	session := other(b.session)
	moved := func(id string) string { return strings.Replace(id, b.session, session, 1) }
	return belongings{session: session, run: moved(b.run), sampler: moved(b.sampler), operation: moved(b.operation), sample: moved(b.sample), name: b.name, turns: other(b.turns), response: "resp_" + other(strings.TrimPrefix(b.response, "resp_"))}
}

// keyed is the server with the keys of ann, bob and an administrator.
func keyed(t *testing.T) (w *world, ann, bob, root caller) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	var made [2]string
	for i, name := range []string{"ann", "bob"} {
		key, err := keys.Add(file, name)
		if err != nil {
			t.Fatal(err)
		}
		made[i] = key
	}
	admin, err := keys.AddAdmin(file, "root")
	if err != nil {
		t.Fatal(err)
	}
	w = newWorldWithKeys(t, file)
	return w, caller{w, made[0]}, caller{w, made[1]}, caller{w, admin}
}

// TestStrangersTellNothing asks for everything of another owner, by every route that the server has, and gets the same answers as about what does not exist; an administrator gets no others, but of the series of runs. A route that has no
// probes here, and does not say that it takes no id, fails the test.
func TestStrangersTellNothing(t *testing.T) {
	w, ann, bob, root := keyed(t)
	theirs := ann.settle()
	none := theirs.unknown()
	for who, stranger := range map[string]caller{"bob": bob, "an administrator": root} {
		mine := stranger.settle()
		foreign, unknown := strangerProbes(t, theirs, mine), strangerProbes(t, none, mine)
		for _, route := range w.handler.(*gin.Engine).Routes() {
			name := route.Method + " " + route.Path
			probes, known := foreign[name]
			if !known {
				t.Errorf("%s: nobody has thought of what it tells strangers", name)
			}
			delete(foreign, name)
			if len(probes) == 0 && strings.Contains(route.Path, ":") {
				t.Errorf("%s: takes an id", name)
			}
			if who == "an administrator" && (strings.HasPrefix(name, "GET /api/v1/tinsmith/runs/") || name == "GET /api/v1/tinsmith/events") { // who may see the series of everybody's runs
				continue
			}
			for i, p := range probes {
				other := unknown[name][0]
				for _, o := range unknown[name] { // maps have no order
					if o.name == p.name {
						other = o
					}
				}
				status, answer := stranger.send(route.Method, p.path, p.body)
				wanted, like := stranger.send(route.Method, other.path, other.body)
				like = strings.ReplaceAll(strings.ReplaceAll(like, none.session, theirs.session), strings.ReplaceAll(none.path(""), "/", "%2F"), strings.ReplaceAll(theirs.path(""), "/", "%2F"))
				like = strings.ReplaceAll(like, none.turns, theirs.turns)
				like = strings.ReplaceAll(like, strings.TrimPrefix(none.response, "resp_"), strings.TrimPrefix(theirs.response, "resp_"))
				if status != wanted || answer != like {
					t.Errorf("%s %d %s, %s:\nforeign %d %s\nunknown %d %s", name, i, p.name, who, status, answer, wanted, like)
				}
				if status == http.StatusOK && !strings.Contains(name, "search") && name != "POST /api/v1/telemetry" {
					t.Errorf("%s %s, %s: answered with %s", name, p.name, who, answer)
				}
			}
		}
		for name := range foreign {
			t.Errorf("%s: there is no such route", name)
		}
		day := time.Now().UTC().Truncate(time.Hour)
		for _, list := range []string{
			"/api/v1/sessions", "/api/v1/sessions?access_scope=accessible", "/api/v1/training_runs", "/api/v1/training_runs?access_scope=accessible", "/api/v1/checkpoints", "/api/v1/audit", "/api/v1/tinsmith/runs",
			"/api/v1/billing/usage/events?starting_on=" + day.Format(time.RFC3339) + "&ending_before=" + day.Add(time.Hour).Format(time.RFC3339), "/api/v1/billing/usage/checkpoints/current", "/v1/models", "/oai/api/v1/models",
		} {
			if answer := stranger.demand(http.MethodGet, list, nil); strings.Contains(answer, theirs.session) || strings.Contains(answer, "of a checkpoint") && !strings.Contains(answer, mine.session) {
				t.Errorf("%s shows %s what is ann's: %s", list, who, answer)
			}
		}
		for _, owner := range []object{{"type": "own"}, {"type": "accessible"}, {"type": "user", "owner_urns": []string{"tml:user:ann"}}} {
			if answer := stranger.demand(http.MethodPost, "/api/v1/sessions/search", object{"owner": owner}); strings.Contains(answer, theirs.session) {
				t.Errorf("search of %v shows %s what is ann's: %s", owner, who, answer)
			}
		}
	}
	// Everything of ann is as it was.
	if got := ann.demand(http.MethodGet, "/api/v1/training_runs/"+theirs.run+"/checkpoints", nil); strings.Count(got, theirs.name) != 6 || strings.Contains(got, `"public":true`) || strings.Contains(got, "expires_at") {
		t.Errorf("ann's checkpoints: %s", got)
	}
	if got := ann.demand(http.MethodGet, "/api/v1/sessions/"+theirs.session, nil); !strings.Contains(got, theirs.run) || !strings.Contains(got, theirs.sampler) || strings.Count(got, ":train:") != 1 || strings.Count(got, ":sample:") != 1 {
		t.Errorf("ann's session: %s", got)
	}
}

// TestPublishedCheckpointTellsOfItselfOnly publishes one of three checkpoints, for each kind, and looks at the run with another key in every way.
func TestPublishedCheckpointTellsOfItselfOnly(t *testing.T) {
	for _, published := range []runs.CheckpointKind{runs.KindWeights, runs.KindSampler, runs.KindExternal} {
		t.Run(string(published), func(t *testing.T) {
			w, ann, bob, _ := keyed(t)
			theirs := ann.settle()
			base := "/api/v1/training_runs/" + theirs.run
			for seq, kind := range []string{"save_weights", "save_weights_for_sampler", "save_weights_external"} { // an older one is published
				ann.future(ann.demand(http.MethodPost, "/api/v1/"+kind, object{"model_id": theirs.run, "path": "later-secret", "seq_id": seq + 4, "user_metadata": object{"later": "metadata"}}))
			}
			ann.demand(http.MethodPost, base+"/checkpoints/"+string(published)+"/"+theirs.name+"/publish", nil)
			_, err := w.core.CopyCheckpoint(w.Context(), runs.CopyCheckpoint{Owner: "ann", Source: theirs.path("weights"), SessionID: theirs.session, ModelSeq: 1})
			w.ok(err)
			var others []string
			for _, kind := range []runs.CheckpointKind{runs.KindWeights, runs.KindSampler, runs.KindExternal} {
				if kind != published {
					others = append(others, string(kind)+"/")
				}
			}
			shown := 0
			for _, p := range []probe{
				{"run", base + "?access_scope=accessible", nil}, {"run", base, nil}, {"run's checkpoints", base + "/checkpoints", nil},
				{"runs", "/api/v1/training_runs?access_scope=accessible", nil}, {"checkpoints", "/api/v1/checkpoints", nil}, {"sessions", "/api/v1/sessions/" + theirs.session + "?access_scope=accessible", nil},
				{"models", "/v1/models", nil}, {"model", "/v1/models/tinker://" + theirs.run, nil}, {"model's checkpoint", "/v1/models/" + theirs.path(string(published)), nil},
				{"archive", base + "/checkpoints/" + string(published) + "/" + theirs.name + "/archive", nil}, {"files", base + "/checkpoints/" + string(published) + "/" + theirs.name + "/external_weights_urls", nil},
				{"weights", "/api/v1/weights_info", object{"tinker_path": theirs.path(string(published))}},
			} {
				method := http.MethodGet
				if p.body != nil {
					method = http.MethodPost
				}
				status, answer := bob.send(method, p.path, p.body)
				if status == http.StatusOK && strings.Contains(answer, theirs.name) {
					shown++
				}
				rest := strings.ReplaceAll(answer, string(published)+"/"+theirs.name, "")
				for _, secret := range []string{"later", "of a run", "of a session", "session_id", ":train:1"} {
					if strings.Contains(rest, secret) {
						t.Errorf("%s tells of %q: %d %s", p.name, secret, status, answer)
					}
				}
				for _, kind := range others { // refusals name the kinds that there are
					if status == http.StatusOK && strings.Contains(rest, kind) {
						t.Errorf("%s tells of %s: %s", p.name, kind, answer)
					}
				}
			}
			if shown == 0 {
				t.Error("the published checkpoint is shown nowhere")
			}
			// What is not published is as unknown as what does not exist.
			for _, kind := range []string{"weights", "sampler_weights", "external_weights"} {
				for _, name := range []string{theirs.name, "later-secret"} {
					if kind == string(published) && name == theirs.name {
						continue
					}
					status, answer := bob.send(http.MethodPost, "/api/v1/weights_info", object{"tinker_path": "tinker://" + theirs.run + "/" + kind + "/" + name})
					wanted, like := bob.send(http.MethodPost, "/api/v1/weights_info", object{"tinker_path": "tinker://" + theirs.run + "/" + kind + "/none"})
					if status != wanted || strings.ReplaceAll(answer, name, "none") != like {
						t.Errorf("%s/%s: %d %s, and of nothing %d %s", kind, name, status, answer, wanted, like)
					}
				}
			}
		})
	}
}
