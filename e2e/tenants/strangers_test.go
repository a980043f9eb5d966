package tenants

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// belongings are one of everything that a tenant has, or the same ids with nothing behind them.
type belongings struct {
	session, run, sampler, pass, sample string
}

func (b belongings) path(kind, name string) string {
	return "tinker://" + b.run + "/" + kind + "/" + name
}

// unknown gives ids of the same form that nobody has.
func (b belongings) unknown() belongings {
	other := func(id string) string { return strings.Replace(id, b.session, flipped(b.session), 1) }
	return belongings{other(b.session), other(b.run), other(b.sampler), other(b.pass), other(b.sample)}
}

// flipped changes the digits of an id, and keeps its form.
func flipped(id string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '8':
			return r + 1
		case r == '9':
			return '0'
		case r >= 'a' && r <= 'e':
			return r + 1
		case r == 'f':
			return 'a'
		}
		return r
	}, id)
}

var checkpointKinds = []string{"weights", "sampler_weights", "external_weights"}

// knock is a request that names something of somebody.
type knock struct {
	name, method, path string
	body               any
}

// knocks are requests of every endpoint that takes an id, for every kind of id. own is a session of the one who asks.
func knocks(b belongings, own string) []knock {
	prompt := object{"chunks": []any{object{"type": "encoded_text", "tokens": []int{70, 71}}}}
	lora := object{"rank": 4, "train_unembed": true, "train_mlp": true, "train_attn": true}
	var list []knock
	add := func(name, method, path string, body any) { list = append(list, knock{name, method, path, body}) }
	get := func(path string) { add("GET "+path, http.MethodGet, "/api/v1/"+path, nil) }
	post := func(name, path string, body any) { add("POST "+name, http.MethodPost, "/api/v1/"+path, body) }
	for _, scope := range []string{"", "?access_scope=accessible", "?access_scope=owned"} {
		get("sessions/" + b.session + scope)
		get("training_runs/" + b.run + scope)
	}
	get("sessions/" + b.session + "/trace_export")
	get("training_runs/" + b.run + "/checkpoints")
	get("samplers/" + b.sampler)
	add("PUT project", http.MethodPut, "/api/v1/sessions/"+b.session+"/project", object{"project_id": "p"})
	post("finish", "sessions/"+b.session+"/finish", object{"reason": object{"type": "success"}})
	post("session_heartbeat", "session_heartbeat", object{"session_id": b.session, "type": "session_heartbeat"})
	post("create_model in the session", "create_model", object{"session_id": b.session, "model_seq_id": 7, "base_model": *flagModel, "lora_config": lora})
	post("create_sampling_session in the session", "create_sampling_session", object{"session_id": b.session, "sampling_session_seq_id": 7, "base_model": *flagModel})
	post("create_sampling_session of the run", "create_sampling_session", object{"session_id": own, "sampling_session_seq_id": 8, "model_path": "tinker://" + b.run})
	post("join_sampling_session", "join_sampling_session", object{"sampling_session_id": b.sampler})
	post("get_info", "get_info", object{"model_id": b.run})
	post("unload_model", "unload_model", object{"model_id": b.run})
	post("forward_backward", "forward_backward", passBytes(b.run, 90, []int32{70, 71}, []int64{71, 72}))
	post("forward", "forward", object{"model_id": b.run, "seq_id": 91, "forward_input": object{"data": []any{}, "loss_fn": "cross_entropy"}})
	post("optim_step", "optim_step", object{"model_id": b.run, "seq_id": 92, "adam_params": object{"learning_rate": 1e-4}})
	for _, name := range []string{"save_weights", "save_weights_for_sampler", "save_weights_external"} {
		for _, path := range []string{"mine", "theirs"} {
			post(name+" "+path, name, object{"model_id": b.run, "path": path, "seq_id": 93})
		}
	}
	post("save_weights_for_sampler unnamed", "save_weights_for_sampler", object{"model_id": b.run, "seq_id": 94, "sampling_session_seq_id": 9})
	for _, optimizer := range []bool{true, false} {
		post("load_weights into the run", "load_weights", object{"model_id": b.run, "seq_id": 95, "path": b.path("weights", "mine"), "optimizer": optimizer})
		post("create from the run's weights", "load_weights", object{"session_id": own, "model_seq_id": 11, "path": b.path("weights", "mine"), "optimizer": optimizer})
		post("create in the session", "load_weights", object{"session_id": b.session, "model_seq_id": 12, "path": b.path("weights", "mine"), "optimizer": optimizer})
	}
	post("asample", "asample", object{"sampling_session_id": b.sampler, "seq_id": 1, "num_samples": 1, "prompt": prompt, "sampling_params": object{"max_tokens": 1}})
	post("asample with a known number", "asample", object{"sampling_session_id": b.sampler, "seq_id": 0, "num_samples": 1, "prompt": prompt, "sampling_params": object{"max_tokens": 1}})
	for _, id := range []string{b.pass, b.sample, b.run + ":0", b.sample + ":0"} {
		post("retrieve_future "+id, "retrieve_future", object{"request_id": id})
		post("cancel_future "+id, "cancel_future", object{"request_id": id})
	}
	post("retrieve_futures", "retrieve_futures", object{"target": object{"type": "sampling_session", "sampling_session_id": b.sampler, "cloned_sampler_id": 0}, "prev_cursor": 0, "timeout": 0})
	for _, kind := range checkpointKinds {
		for _, name := range []string{"mine", "none"} {
			checkpoint := "training_runs/" + b.run + "/checkpoints/" + kind + "/" + name
			path := b.path(kind, name)
			get(checkpoint + "/archive")
			get(checkpoint + "/external_weights_urls")
			add("DELETE "+checkpoint, http.MethodDelete, "/api/v1/"+checkpoint, nil)
			add("publish "+checkpoint, http.MethodPost, "/api/v1/"+checkpoint+"/publish", nil)
			add("unpublish "+checkpoint, http.MethodDelete, "/api/v1/"+checkpoint+"/publish", nil)
			add("ttl "+checkpoint, http.MethodPut, "/api/v1/"+checkpoint+"/ttl", object{"ttl_seconds": 1})
			post("weights_info "+path, "weights_info", object{"tinker_path": path})
			post("copy_weights "+path, "copy_weights", object{"source_path": path, "destination_project_id": "p"})
			post("create_sampling_session "+path, "create_sampling_session", object{"session_id": own, "sampling_session_seq_id": 13, "model_path": path})
		}
	}
	return list
}

// chatKnocks are those under /v1.
func chatKnocks(b belongings) []knock {
	var list []knock
	for _, model := range []string{"tinker://" + b.run, b.path("sampler_weights", "mine"), b.path("weights", "mine"), b.sampler, b.run} {
		list = append(list,
			knock{"chat " + model, http.MethodPost, "/v1/chat/completions", object{"model": model, "messages": []any{object{"role": "user", "content": "hi"}}, "max_tokens": 1}},
			knock{"completions " + model, http.MethodPost, "/v1/completions", object{"model": model, "prompt": "hi", "max_tokens": 1}},
			knock{"model " + model, http.MethodGet, "/v1/models/" + model, nil},
			knock{"tokenize " + model, http.MethodPost, "/tokenize", object{"model": model, "prompt": "x"}})
	}
	return list
}

// fullBelongings makes one of everything.
func fullBelongings(ctx context.Context, t *testing.T, c client) (belongings, *trainee) {
	t.Helper()
	run := must(c.train(ctx, 4))(t)
	tokens := ramp(1, 12)
	targets := make([]int64, len(tokens))
	for i := range targets {
		targets[i] = 70
	}
	if err := run.step(ctx, tokens, targets, 1e-3); err != nil {
		t.Fatal(err)
	}
	must(run.finish(ctx, "save_weights", object{"model_id": run.id, "path": "mine", "seq_id": run.next(), "overwrite": false}))(t)
	must(run.save(ctx, "mine"))(t)
	must(run.finish(ctx, "save_weights_external", object{"model_id": run.id, "path": "mine", "seq_id": run.next()}))(t)
	s := must(c.sampling(ctx, run.session, 0, ""))(t)
	submitted := must(c.post(ctx, "asample", s.request(0, tokens, 1, 0)))(t)
	sample, _ := submitted["request_id"].(string)
	must(c.wait(ctx, sample))(t)
	return belongings{run.session, run.id, s.id, run.id + ":1", sample}, run
}

// TestStrangers sends every request that takes an id twice with the neighbour's key: with the ids of somebody's, and with ids that nobody has. The answers must not differ, so that nobody learns what there
// is, and afterwards everything must be as it was.
func TestStrangers(t *testing.T) {
	ctx := t.Context()
	server, ann, bob := start(t)
	foreign, run := fullBelongings(ctx, t, ann)
	unknown := foreign.unknown()
	own := must(bob.session(ctx, object{}))(t)
	theirs, nobodys := knocks(foreign, own), knocks(unknown, own)
	if server.own() || *flagChat {
		theirs, nobodys = append(theirs, chatKnocks(foreign)...), append(nobodys, chatKnocks(unknown)...)
	}
	before := must(ann.do(ctx, http.MethodGet, "/api/v1/training_runs/"+foreign.run+"/checkpoints", nil))(t)
	for i := range theirs {
		got := must(bob.do(ctx, theirs[i].method, theirs[i].path, theirs[i].body))(t)
		control := must(bob.do(ctx, nobodys[i].method, nobodys[i].path, nobodys[i].body))(t)
		name := strings.ReplaceAll(theirs[i].name, foreign.session, "SESSION")
		text := strings.ReplaceAll(string(got.body), foreign.session, "SESSION")
		if want := strings.ReplaceAll(string(control.body), unknown.session, "SESSION"); got.status != control.status || text != want {
			t.Errorf("%s: a stranger can tell what there is from what there is not:\n theirs   %s\n nobody's %s", name, got, control)
		}
		if got.status == http.StatusOK && !strings.HasPrefix(theirs[i].name, "POST cancel_future") {
			t.Errorf("%s: is answered: %s", name, got)
		}
		if got.status >= 500 {
			t.Errorf("%s: %s", name, got)
		}
	}
	t.Logf("%d pairs of requests", len(theirs))
	if len(theirs) < 88 {
		t.Errorf("only %d pairs", len(theirs))
	}
	for _, list := range []string{"sessions", "sessions?access_scope=accessible", "training_runs", "training_runs?access_scope=accessible", "checkpoints", "audit", "billing/usage/events", "billing/usage/checkpoints/current"} {
		if got := must(bob.do(ctx, http.MethodGet, "/api/v1/"+list, nil))(t); strings.Contains(string(got.body), foreign.session) {
			t.Errorf("list %s shows a stranger's: %s", list, got)
		}
	}
	if after := must(ann.do(ctx, http.MethodGet, "/api/v1/training_runs/"+foreign.run+"/checkpoints", nil))(t); string(after.body) != string(before.body) {
		t.Errorf("a stranger changed the checkpoints:\n before %s\n after  %s", before, after)
	}
	if err := run.step(ctx, []int32{70, 71}, []int64{71, 72}, 1e-3); err != nil {
		t.Errorf("a stranger stopped the run: %v", err)
	}
	if _, err := ann.wait(ctx, foreign.sample); err != nil {
		t.Errorf("a stranger took a result away: %v", err)
	}
}

// TestPublished publishes one checkpoint of a run: what the neighbour sees of the run then is that checkpoint and nothing else.
func TestPublished(t *testing.T) {
	ctx := t.Context()
	_, ann, bob := start(t)
	run := must(ann.train(ctx, 4))(t)
	if err := run.step(ctx, []int32{70, 71}, []int64{71, 72}, 1e-3); err != nil {
		t.Fatal(err)
	}
	secret := "private-plan-of-ann"
	must(run.save(ctx, "shown"))(t)
	must(run.save(ctx, secret))(t)
	must(run.finish(ctx, "save_weights", object{"model_id": run.id, "path": secret, "seq_id": run.next()}))(t)
	must(run.finish(ctx, "save_weights", object{"model_id": run.id, "path": "shown", "seq_id": run.next()}))(t)
	if a := must(ann.do(ctx, http.MethodPost, "/api/v1/training_runs/"+run.id+"/checkpoints/sampler_weights/shown/publish", nil))(t); a.status/100 != 2 {
		t.Skipf("checkpoints cannot be published here: %s", a)
	}
	seen := false
	for _, path := range []string{
		"/api/v1/training_runs/" + run.id + "?access_scope=accessible", "/api/v1/training_runs/" + run.id, "/api/v1/training_runs/" + run.id + "/checkpoints", "/api/v1/training_runs?access_scope=accessible",
		"/api/v1/training_runs/" + run.id + "/checkpoints?access_scope=accessible", "/api/v1/checkpoints", "/api/v1/sessions/" + run.session + "?access_scope=accessible", "/api/v1/sessions?access_scope=accessible", "/v1/models",
	} {
		got := must(bob.do(ctx, http.MethodGet, path, nil))(t)
		for _, hidden := range []string{secret, run.id + "/weights/", ":train:0/weights"} {
			if strings.Contains(string(got.body), hidden) {
				t.Errorf("%s shows what was not published (%s): %s", strings.ReplaceAll(path, run.id, "RUN"), hidden, got)
			}
		}
		seen = seen || strings.Contains(string(got.body), "sampler_weights/shown")
	}
	if !seen {
		t.Error("what was published is shown nowhere")
	}
	if a := must(bob.do(ctx, http.MethodGet, "/api/v1/training_runs/"+run.id+"/checkpoints/sampler_weights/"+secret+"/archive", nil))(t); a.status < 400 {
		t.Errorf("a private checkpoint's archive: %s", a)
	}
}
