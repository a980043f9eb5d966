package hostile

import (
	"net/http"
	"strings"
	"testing"
)

// TestStrangers makes one of everything with one key and looks for it with another, with a wrong one and with none.
func TestStrangers(t *testing.T) {
	s := start(t)
	ann, bob := s.as("ann"), s.as("bob")
	run := ann.create(t)
	run.good(t, 1)
	pass := run.id + ":1"
	run.finish(t, run.post(t, "/api/v1/save_weights", object{"model_id": run.id, "path": "mine", "seq_id": run.next(), "overwrite": false}))
	run.finish(t, run.post(t, "/api/v1/save_weights_for_sampler", object{"model_id": run.id, "path": "mine", "seq_id": run.next()}))
	run.finish(t, run.post(t, "/api/v1/save_weights_external", object{"model_id": run.id, "path": "mine", "seq_id": run.next()}))
	sampler := ann.post(t, "/api/v1/create_sampling_session", object{"session_id": run.session, "sampling_session_seq_id": 0, "base_model": modelName}).ok(t)["sampling_session_id"].(string)
	sample := object{"sampling_session_id": sampler, "seq_id": 0, "num_samples": 1, "prompt": object{"chunks": []any{object{"type": "encoded_text", "tokens": []int{5}}}}, "sampling_params": object{"max_tokens": 1}}
	sampled := ann.post(t, "/api/v1/asample", sample).ok(t)["request_id"].(string)
	ann.wait(t, sampled)
	session := bob.session(t)
	path := "tinker://" + run.id + "/"
	checkpoints := "/api/v1/training_runs/" + run.id + "/checkpoints/"
	p := ordinary(1)
	p.model, p.seq = run.id, 50
	type request struct {
		method, path string
		body         any
	}
	get := func(path string) request { return request{http.MethodGet, path, nil} }
	post := func(path string, body any) request { return request{http.MethodPost, "/api/v1/" + path, body} }
	for _, r := range []request{
		get("/api/v1/sessions/" + run.session), get("/api/v1/sessions/" + run.session + "?access_scope=accessible"), get("/api/v1/sessions/" + run.session + "/trace_export"),
		get("/api/v1/training_runs/" + run.id), get("/api/v1/training_runs/" + run.id + "?access_scope=accessible"), get("/api/v1/training_runs/" + run.id + "/checkpoints"), get("/api/v1/samplers/" + sampler),
		get(checkpoints + "sampler_weights/mine/archive"), get(checkpoints + "external_weights/mine/external_weights_urls"),
		{http.MethodDelete, checkpoints + "weights/mine", nil}, {http.MethodPost, checkpoints + "weights/mine/publish", nil}, {http.MethodDelete, checkpoints + "weights/mine/publish", nil}, {http.MethodPut, checkpoints + "weights/mine/ttl", object{"ttl_seconds": 1}},
		{http.MethodPut, "/api/v1/sessions/" + run.session + "/project", object{"project_id": "p"}},
		post("sessions/"+run.session+"/finish", object{"reason": object{"type": "success"}}),
		post("session_heartbeat", object{"session_id": run.session}),
		post("create_model", object{"session_id": run.session, "model_seq_id": 7, "base_model": modelName, "lora_config": object{"rank": 4}}),
		post("create_sampling_session", object{"session_id": run.session, "sampling_session_seq_id": 7, "base_model": modelName}),
		post("create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 7, "model_path": path + "sampler_weights/mine"}),
		post("create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 7, "model_path": "tinker://" + run.id}),
		post("join_sampling_session", object{"sampling_session_id": sampler}),
		post("get_info", object{"model_id": run.id}), post("unload_model", object{"model_id": run.id}),
		post("forward_backward", p.encode()), post("forward", object{"model_id": run.id, "seq_id": 50, "forward_input": object{"data": []any{}}}), get("/api/v1/models/" + run.id + "/checkpoints"),
		post("optim_step", object{"model_id": run.id, "seq_id": 50, "adam_params": adam(1)}),
		post("save_weights", object{"model_id": run.id, "path": "theirs", "seq_id": 50}), post("save_weights_for_sampler", object{"model_id": run.id, "path": "theirs", "seq_id": 50}), post("save_weights_external", object{"model_id": run.id, "path": "theirs", "seq_id": 50}),
		post("load_weights", object{"session_id": session, "model_seq_id": 7, "path": path + "weights/mine", "optimizer": true}),
		post("load_weights", object{"model_id": run.id, "seq_id": 50, "path": path + "weights/mine", "optimizer": true}),
		post("weights_info", object{"tinker_path": path + "weights/mine"}), post("copy_weights", object{"source_path": path + "weights/mine", "destination_project_id": "p"}),
		post("asample", object{"sampling_session_id": sampler, "seq_id": 1, "num_samples": 1, "prompt": object{"chunks": []any{object{"type": "encoded_text", "tokens": []int{5}}}}, "sampling_params": object{"max_tokens": 1}}), post("asample", sample),
		post("retrieve_future", object{"request_id": pass}), post("retrieve_future", object{"request_id": sampled}), post("retrieve_futures", object{"target": object{"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}, "prev_cursor": 0, "timeout": 0}),
		{http.MethodPost, "/v1/chat/completions", object{"model": "tinker://" + run.id, "messages": []any{object{"role": "user", "content": "hi"}}, "max_tokens": 1}},
		{http.MethodPost, "/v1/completions", object{"model": path + "sampler_weights/mine", "prompt": "hi", "max_tokens": 1}},
		get("/v1/models/tinker://" + run.id), get("/v1/models/" + path + "sampler_weights/mine"), get("/tokenizer_info?model=tinker://" + run.id), {http.MethodPost, "/tokenize", object{"model": "tinker://" + run.id, "prompt": "x"}},
	} {
		t.Run(r.method+" "+strings.ReplaceAll(r.path, run.id, "RUN"), func(t *testing.T) {
			kind := "application/json"
			if _, encoded := r.body.([]byte); encoded {
				kind = "application/x-protobuf"
			}
			got := bob.send(t, r.method, r.path, reader(t, r.body), "Content-Type", kind)
			got.refused(t)
			if got.status != http.StatusNotFound && got.status != http.StatusForbidden && got.status != http.StatusBadRequest {
				t.Errorf("got %s", got)
			}
			for _, c := range []client{{s, "tml-wrong"}, {s, ""}, {s, strings.Repeat("k", 10000)}, {s, s.Keys["ann"] + "x"}, {s, s.Keys["ann"][:20]}} {
				if got := c.send(t, r.method, r.path, reader(t, r.body)); got.status != http.StatusUnauthorized {
					t.Errorf("without a key: %s", got)
				}
			}
		})
	}
	for _, list := range []string{"/api/v1/sessions", "/api/v1/sessions?access_scope=accessible", "/api/v1/training_runs", "/api/v1/training_runs?access_scope=accessible", "/api/v1/checkpoints", "/api/v1/audit", "/api/v1/billing/usage/events", "/api/v1/billing/usage/checkpoints/current", "/api/v1/tinsmith/runs", "/v1/models", "/oai/api/v1/models"} {
		t.Run("list "+list, func(t *testing.T) {
			if got := bob.send(t, http.MethodGet, list, nil); strings.Contains(string(got.body), run.session) {
				t.Errorf("shows a stranger's: %s", got)
			}
		})
	}
	for _, owner := range []object{{"type": "own"}, {"type": "accessible"}, {"type": "user", "owner_urns": []string{"tml:user:ann"}}} {
		if got := bob.post(t, "/api/v1/sessions/search", object{"owner": owner}); strings.Contains(string(got.body), run.session) {
			t.Errorf("search %v shows a stranger's: %s", owner, got)
		}
	}
	// Ann's are as they were: cancelling from outside did nothing either.
	bob.post(t, "/api/v1/cancel_future", object{"request_id": sampled})
	if got := ann.wait(t, sampled); got.failure != "" {
		t.Errorf("a stranger cancelled a sample: %s", got.failure)
	}
	run.good(t, 2)
}
