package hostile

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
)

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

// wrongPass is a forward_backward whose future must fail, with what its message must name.
type wrongPass struct {
	name  string
	pass  pass
	words []string
}

// with gives an ordinary request of one datum with changed inputs; nil takes one away.
func with(changes map[string]tensor) pass {
	p := ordinary(1)
	p.data = p.data[:1]
	for name, t := range changes {
		if t == nil {
			delete(p.data[0].inputs, name)
		} else {
			p.data[0].inputs[name] = t
		}
	}
	return p
}

// reinforced gives a request of one datum of 4 tokens for a loss with log-probabilities and advantages.
func reinforced(loss string, config map[string]float64, changes map[string]tensor) pass {
	d := datum{tokens: []int32{5, 6, 7, 8}, inputs: map[string]tensor{"target_tokens": ints(6, 7, 8, 9), "logprobs": floats(-1, -2, -1, -1), "advantages": floats(0, 1, -1, 1)}}
	if loss == "gspo" {
		d.inputs["sequence_ratio_mask"] = floats(0, 1, 1, 1)
	}
	for name, t := range changes {
		if t == nil {
			delete(d.inputs, name)
		} else {
			d.inputs[name] = t
		}
	}
	return pass{data: []datum{d}, loss: loss, config: config}
}

func repeat[T any](n int, v T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func wrongPasses() []wrongPass {
	withTokens := func(tokens ...int32) pass {
		p := with(nil)
		p.data[0].tokens = tokens
		return p
	}
	withChunk := func(chunk []byte) pass {
		p := with(nil)
		p.data[0].chunk = chunk
		return p
	}
	twelve := repeat(12, float32(1))
	changed := func(i int, v float32) tensor {
		c := append([]float32(nil), twelve...)
		c[i] = v
		return floats(c...)
	}
	targets := func(i int, v int64) tensor {
		c := repeat(12, int64(3))
		c[i] = v
		return ints(c...)
	}
	long := repeat(5000, int32(9))
	cases := []wrongPass{
		{"no data", pass{loss: "cross_entropy"}, []string{"data"}},
		{"no loss", pass{data: ordinary(0).data}, []string{"loss_fn", "cross_entropy"}},
		{"unknown loss", pass{data: ordinary(0).data, loss: "no_such_loss"}, []string{"loss_fn", "no_such_loss", "cross_entropy"}},
		{"long name of a loss", pass{data: ordinary(0).data, loss: strings.Repeat("x", 100000)}, []string{"loss_fn", "cross_entropy"}},
		{"custom loss", pass{data: ordinary(0).data, loss: "custom"}, []string{"loss_fn", "custom"}},
		{"unknown setting", pass{data: ordinary(0).data, loss: "cross_entropy", config: map[string]float64{"label_smoothing": 0.1}}, []string{"label_smoothing"}},
		{"textual setting", pass{data: ordinary(0).data, loss: "cross_entropy", text: map[string]string{"mode": "hard"}}, []string{"mode"}},
		{"no tokens", withTokens(), []string{"data[0]", "token"}},
		{"no chunks", pass{data: []datum{{inputs: map[string]tensor{"target_tokens": ints(), "weights": floats()}}}, loss: "cross_entropy"}, []string{"data[0]", "token"}},
		{"token out of vocabulary", withTokens(1, 2, 3, 4096, 5, 6, 7, 8, 9, 10, 11, 12), []string{"data[0].model_input", "4096", "4095"}},
		{"negative token", withTokens(1, 2, 3, -1, 5, 6, 7, 8, 9, 10, 11, 12), []string{"data[0].model_input", "-1"}},
		{"smallest token", withTokens(1, 2, 3, math.MinInt32, 5, 6, 7, 8, 9, 10, 11, 12), []string{"data[0].model_input", "-2147483648"}},
		{"image", withChunk(field(nil, 2, field(field(nil, 1, []byte("\x89PNG")), 2, []byte("png")))), []string{"data[0].model_input", "image", "encoded_text"}},
		{"audio", withChunk(field(nil, 3, field(nil, 1, []byte{254, 0, 1, 1}))), []string{"data[0].model_input", "dmel"}},
		{"empty chunk", withChunk([]byte{}), []string{"data[0].model_input", "encoded_text"}},
		{"bytes of tokens", withChunk(field(nil, 1, field(nil, 1, []byte{1, 2, 3}))), []string{"data[0].model_input", "3"}},
		{"over the context", pass{data: []datum{{tokens: long, inputs: map[string]tensor{"target_tokens": ints(repeat(5000, int64(9))...), "weights": floats(repeat(5000, float32(1))...)}}}, loss: "cross_entropy"}, []string{"data[0]", "5000", "4096"}},
		{"no targets", with(map[string]tensor{"target_tokens": nil}), []string{"data[0]", "target_tokens"}},
		{"target out of vocabulary", with(map[string]tensor{"target_tokens": targets(5, 4096)}), []string{"target_tokens", "4096", "4095"}},
		{"target beyond 32 bits", with(map[string]tensor{"target_tokens": targets(5, 1<<32+3)}), []string{"target_tokens", "4294967299"}},
		{"negative target", with(map[string]tensor{"target_tokens": targets(5, -1)}), []string{"target_tokens", "-1"}},
		{"targets of the wrong type", with(map[string]tensor{"target_tokens": floats(twelve...)}), []string{"target_tokens", "integers"}},
		{"too few targets", with(map[string]tensor{"target_tokens": ints(1, 2)}), []string{"target_tokens", "[2]", "12"}},
		{"too few weights", with(map[string]tensor{"weights": floats(1, 2)}), []string{"weights", "[2]", "[12]"}},
		{"weights of another rank", with(map[string]tensor{"weights": dense(typeFloat32, make([]byte, 48), 3, 4)}), []string{"weights", "[3 4]"}},
		{"shape that is not filled", with(map[string]tensor{"weights": dense(typeFloat32, make([]byte, 48), 1<<40)}), []string{"weights", "1099511627776"}},
		{"shape that overflows", with(map[string]tensor{"weights": dense(typeFloat32, make([]byte, 48), 1<<62, 1<<62, 4)}), []string{"weights"}},
		{"negative shape", with(map[string]tensor{"weights": dense(typeFloat32, make([]byte, 48), -12)}), []string{"weights", "-12"}},
		{"empty shape with zero", with(map[string]tensor{"weights": dense(typeFloat32, nil, 0, 1<<62)}), []string{"weights"}},
		{"a hundred thousand dimensions", with(map[string]tensor{"weights": dense(typeFloat32, make([]byte, 4), repeat(100000, int64(1))...)}), []string{"weights"}},
		{"bytes of a tensor", with(map[string]tensor{"weights": dense(typeFloat32, []byte{1, 2, 3}, 12)}), []string{"weights", "3"}},
		{"tensor without type", with(map[string]tensor{"weights": dense(0, make([]byte, 48), 12)}), []string{"weights", "dtype"}},
		{"tensor of unknown type", with(map[string]tensor{"weights": dense(77, make([]byte, 48), 12)}), []string{"weights", "dtype", "77"}},
		{"NaN weight", with(map[string]tensor{"weights": changed(3, nan)}), []string{"data[0].weights", "3"}},
		{"infinite weight", with(map[string]tensor{"weights": changed(4, -inf)}), []string{"data[0].weights", "4"}},
		{"weights that overflow the gradient", with(map[string]tensor{"weights": floats(repeat(12, float32(3e38))...)}), []string{"finite"}},
		{"sparse rows that lie", with(map[string]tensor{"weights": sparse(typeFloat32, make([]byte, 4), int64s(0, 5), int64s(0), 1, 4)}), []string{"weights", "row"}},
		{"sparse shape that is huge", with(map[string]tensor{"weights": sparse(typeFloat32, nil, int64s(0, 0), nil, 1<<31, 1<<31)}), []string{"weights", "2147483648"}},
		{"sparse column out of range", with(map[string]tensor{"weights": sparse(typeFloat32, make([]byte, 4), int64s(0, 1), int64s(-1), 1, 4)}), []string{"weights", "column"}},
		{"sparse that is not in the request", pass{loss: "cross_entropy", data: repeat(8, datum{tokens: repeat(4096, int32(3)), inputs: map[string]tensor{
			"target_tokens": sparse(typeInt64, nil, make([]byte, 4097*8), nil, 4096, 4096), "weights": sparse(typeFloat32, nil, make([]byte, 4097*8), nil, 4096, 4096)}})}, []string{"data"}},
		{"sparse without rows", with(map[string]tensor{"weights": sparse(typeFloat32, nil, nil, nil, 0, 0)}), []string{"weights"}},
		{"two dimensions for a loss of one", reinforced("ppo", nil, map[string]tensor{"target_tokens": dense(typeInt64, int64s(repeat(8, int64(1))...), 4, 2)}), []string{"target_tokens", "cross_entropy"}},
		{"no provenance", reinforced("stable_reinforce", nil, nil), []string{"stable_reinforce", "provenance"}},
	}
	for _, loss := range []string{"importance_sampling", "ppo", "cispo", "dro", "gspo"} {
		beta := map[string]float64(nil)
		if loss == "dro" {
			beta = map[string]float64{"beta": 0.05}
		}
		cases = append(cases,
			wrongPass{loss + ": NaN advantage", reinforced(loss, beta, map[string]tensor{"advantages": floats(0, nan, 1, 1)}), []string{"advantages", "1"}},
			wrongPass{loss + ": infinite log-probability", reinforced(loss, beta, map[string]tensor{"logprobs": floats(0, -1, -inf, 1)}), []string{"logprobs", "2"}},
			wrongPass{loss + ": no log-probabilities", reinforced(loss, beta, map[string]tensor{"logprobs": nil}), []string{"logprobs"}},
			wrongPass{loss + ": NaN weight", reinforced(loss, beta, map[string]tensor{"weights": floats(1, nan, 1, 1)}), []string{"weights", "1"}},
			wrongPass{loss + ": too few weights", reinforced(loss, beta, map[string]tensor{"weights": floats(1, 1)}), []string{"weights", "[2]", "[4]"}},
			wrongPass{loss + ": unread input that lies", reinforced(loss, beta, map[string]tensor{"mask": dense(typeFloat32, make([]byte, 48), 1<<40)}), []string{"mask", "1099511627776"}},
			wrongPass{loss + ": unknown setting", reinforced(loss, map[string]float64{"kl_coef": 1}, nil), []string{"kl_coef"}},
			wrongPass{loss + ": ratio that overflows", reinforced(loss, beta, map[string]tensor{"logprobs": floats(-3e38, -3e38, -3e38, -3e38), "advantages": floats(1, -3e38, -3e38, -3e38)}), nil},
		)
	}
	for _, loss := range []string{"ppo", "cispo", "gspo"} {
		for _, bad := range []map[string]float64{
			{"clip_low_threshold": -0.1}, {"clip_high_threshold": math.NaN()}, {"clip_high_threshold": math.Inf(1)}, {"clip_low_threshold": 1.5, "clip_high_threshold": 1.1}, {"clip_low_threshold": math.Inf(-1)},
			{"clip_low_threshold": 1e300}, {"clip_low_threshold": 5},
		} {
			cases = append(cases, wrongPass{fmt.Sprintf("%s: %v", loss, bad), reinforced(loss, bad, nil), []string{"clip_"}})
		}
	}
	cases = append(cases,
		wrongPass{"ppo: high bound below the default of the low one", reinforced("ppo", map[string]float64{"clip_high_threshold": 0.5}, nil), []string{"clip_"}},
		wrongPass{"dro: NaN beta", reinforced("dro", map[string]float64{"beta": math.NaN()}, nil), []string{"beta"}},
		wrongPass{"dro: negative beta", reinforced("dro", map[string]float64{"beta": -1}, nil), []string{"beta", "-1"}},
		wrongPass{"gspo: NaN mask", reinforced("gspo", nil, map[string]tensor{"sequence_ratio_mask": floats(nan, 1, 1, 1)}), []string{"sequence_ratio_mask"}},
		wrongPass{"gspo: no mask", reinforced("gspo", nil, map[string]tensor{"sequence_ratio_mask": nil}), []string{"sequence_ratio_mask"}},
	)
	return cases
}

// TestWrongPasses sends every wrong request to one run between ordinary steps. It ends with the weights of a run that saw only the ordinary ones, and so does a
// third run that was trained at the same time.
func TestWrongPasses(t *testing.T) {
	ann := start(t).as("ann")
	abused, control, neighbour := ann.create(t), ann.create(t), ann.create(t)
	for i, c := range wrongPasses() {
		t.Run(c.name, func(t *testing.T) {
			// Behind an ordinary pass and before the step that uses it, in one cycle with the neighbour's.
			submitted := []answer{abused.pass(t, ordinary(i)), abused.pass(t, c.pass), abused.step(t, adam(1e-3))}
			alongside := []answer{neighbour.pass(t, ordinary(i)), neighbour.step(t, adam(1e-3))}
			if strings.HasSuffix(c.name, "ratio that overflows") {
				abused.failsOrNot(t, submitted[1]) // each loss clamps in its own way
			} else {
				abused.fails(t, submitted[1], c.words...)
			}
			abused.finish(t, submitted[0])
			abused.finish(t, submitted[2])
			for _, a := range alongside {
				neighbour.finish(t, a)
			}
			control.good(t, i)
		})
	}
	want := control.weights(t)
	if !bytes.Equal(neighbour.weights(t), want) {
		t.Error("a neighbour's weights are not those of a run alone")
	}
	if !bytes.Equal(abused.weights(t), want) {
		t.Error("refused passes changed the weights")
	}
}

// failsOrNot waits for an operation that may succeed or fail, but must end.
func (r *trainee) failsOrNot(t testing.TB, submitted answer) {
	t.Helper()
	o := r.wait(t, submitted.ok(t)["request_id"].(string))
	if o.failure == "" {
		t.Errorf("accepted, so the weights may differ: %v", o.result)
	}
}

func TestWrongProvenance(t *testing.T) {
	s := start(t)
	ann, bob := s.as("ann"), s.as("bob")
	sampled := func(c client) (string, []int64) {
		session := c.session(t)
		sampler := c.post(t, "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 0, "base_model": modelName}).ok(t)["sampling_session_id"].(string)
		got := c.post(t, "/api/v1/asample", object{"sampling_session_id": sampler, "seq_id": 0, "num_samples": 1, "prompt": object{"chunks": []any{object{"type": "encoded_text", "tokens": []int{5, 6, 7}}}},
			"sampling_params": object{"max_tokens": 4, "stop": []int{}, "seed": 1}, "record_stability_info": true}).ok(t)
		o := c.wait(t, got["request_id"].(string))
		return got["sample_sequence_ids"].([]any)[0].(string), sampledTokens(t, o.protobuf)
	}
	mine, tokens := sampled(ann)
	foreign, _ := sampled(bob)
	run, control := ann.create(t), ann.create(t)
	request := func(advantages []float32, spans ...[]byte) pass {
		return pass{loss: "stable_reinforce", data: []datum{{tokens: []int32{5, 6, 7, int32(tokens[0]), int32(tokens[1]), int32(tokens[2])},
			inputs:    map[string]tensor{"target_tokens": ints(6, 7, tokens[0], tokens[1], tokens[2], tokens[3]), "logprobs": floats(0, 0, -1, -1, -1, -1), "advantages": floats(advantages...)},
			lossSpans: spans, inputSpans: [][]byte{span(1, mine, 0, 3), span(2, mine, 0, 3)}}}}
	}
	fair := []float32{0, 0, 1, 1, -1, 1}
	prompt := span(1, mine, 1, 2)
	good := request(fair, prompt, span(2, mine, 0, 4))
	for name, c := range map[string]struct {
		pass  pass
		words []string
	}{
		"of another key":           {request(fair, prompt, span(2, foreign, 0, 4)), []string{"data[0].loss_fn_input_spans", foreign}},
		"unknown":                  {request(fair, prompt, span(2, "nobody:sample:0:0:0", 0, 4)), []string{"data[0].loss_fn_input_spans", "nobody"}},
		"not an id":                {request(fair, prompt, span(2, "../../etc/passwd", 0, 4)), []string{"data[0].loss_fn_input_spans"}},
		"huge number":              {request(fair, prompt, span(2, mine[:len(mine)-1]+"99999999999999999999", 0, 4)), []string{"data[0].loss_fn_input_spans"}},
		"number beyond":            {request(fair, prompt, span(2, mine[:len(mine)-1]+"7", 0, 4)), []string{"data[0].loss_fn_input_spans"}},
		"empty id":                 {request(fair, prompt, span(2, "", 0, 4)), []string{"data[0].loss_fn_input_spans"}},
		"offset beyond":            {request(fair, prompt, span(2, mine, 1, 4)), []string{"4", "1"}},
		"offset that overflows":    {request(fair, prompt, span(2, mine, math.MaxInt64, 4)), []string{"span"}},
		"negative offset":          {request(fair, prompt, span(2, mine, -1, 4)), []string{"-1"}},
		"length that overflows":    {request(fair, prompt, span(2, mine, 0, math.MaxInt64)), []string{"span"}},
		"negative length":          {request(fair, prompt, span(2, mine, 0, -4)), []string{"-4"}},
		"too few rows":             {request(fair, prompt, span(2, mine, 0, 3)), []string{"5", "6"}},
		"unsampled with advantage": {request([]float32{0, 1, 1, 1, -1, 1}, prompt, span(2, mine, 0, 4)), []string{"advantage"}},
		"sampled as prompt":        {request(fair, span(1, mine, 0, 6)), []string{"advantage"}},
		"tokens that were not":     {request(fair, span(2, mine, 0, 2), span(2, mine, 0, 4)), []string{"token"}},
		"neither kind":             {request(fair, []byte{}), []string{"span"}},
	} {
		t.Run(name, func(t *testing.T) { run.fails(t, run.pass(t, c.pass), c.words...) })
	}
	for _, r := range []*trainee{run, control} {
		r.finish(t, r.pass(t, good))
		r.finish(t, r.step(t, adam(1e-3)))
	}
	if !bytes.Equal(run.weights(t), control.weights(t)) {
		t.Error("refused passes changed the weights")
	}
}

// TestUndecodablePasses are refused at once: there is no operation that could fail.
func TestUndecodablePasses(t *testing.T) {
	ann := start(t).as("ann")
	run, control := ann.create(t), ann.create(t)
	whole := func() []byte { p := ordinary(1); p.model, p.seq = run.id, run.next(); return p.encode() }
	for name, c := range map[string]struct {
		body  []byte
		words []string
	}{
		"empty":               {nil, []string{"model_id"}},
		"cut":                 {whole()[:100], []string{"body"}},
		"text":                {[]byte("hello"), []string{"body"}},
		"JSON":                {[]byte(`{"model_id": "x", "seq_id": 1}`), []string{"body"}},
		"no model":            {pass{seq: 1}.encode(), []string{"model_id"}},
		"negative number":     {pass{model: run.id, seq: -5}.encode(), []string{"seq_id", "-5"}},
		"invalid UTF-8":       {pass{model: "\xff\xfe", seq: 1}.encode(), []string{"body"}},
		"unknown model":       {pass{model: "nobody:train:0", seq: 1, data: ordinary(0).data, loss: "cross_entropy"}.encode(), []string{"nobody:train:0"}},
		"a million nestings":  {bytes.Repeat([]byte{0x1b}, 1<<20), []string{"body"}},
		"length beyond bytes": {[]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f}, []string{"body"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := ann.post(t, "/api/v1/forward_backward", c.body, "Content-Type", "application/x-protobuf")
			got.refused(t, c.words...)
		})
	}
	// Small on the wire, large in memory: these are refused before they are decoded, in their place in the order.
	for name, extra := range map[string][]byte{
		"datums":     bytes.Repeat([]byte{0x1a, 0}, 1<<20),
		"chunks":     field(nil, 3, bytes.Repeat([]byte{0x0a, 0}, 1<<20)),
		"inputs":     field(nil, 3, bytes.Repeat([]byte{0x12, 0}, 1<<20)),
		"spans":      field(nil, 3, bytes.Repeat([]byte{0x1a, 0}, 1<<20)),
		"settings":   bytes.Repeat([]byte{0x2a, 0}, 1<<20),
		"dimensions": field(nil, 3, field(nil, 2, field(nil, 2, field(nil, 4, bytes.Repeat([]byte{1}, 1<<20))))),
	} {
		t.Run("a million "+name, func(t *testing.T) {
			ann.fails(t, ann.post(t, "/api/v1/forward_backward", append(whole(), extra...), "Content-Type", "application/x-protobuf"), "data", "262144")
		})
	}
	// The same in JSON, of which a clause of two bytes can be as much.
	for name, c := range map[string]struct {
		input string
		words []string
	}{
		"no input":           {`null`, []string{"forward_input", "null"}},
		"a million datums":   {`{"data":[` + strings.Repeat(`{},`, 1<<20) + `{}]}`, []string{"data", "262144"}},
		"a million chunks":   {`{"data":[{"model_input":{"chunks":[` + strings.Repeat(`{"tokens":[]},`, 1<<20) + `{}]}}]}`, []string{"data", "262144"}},
		"a million inputs":   {`{"data":[{"loss_fn_inputs":{` + strings.Repeat(`"":{"data":[],"dtype":"int64"},`, 1<<20) + `"":5}}]}`, []string{"data", "262144"}},
		"a million settings": {`{"loss_fn_config":{` + strings.Repeat(`"":1,`, 1<<20) + `"":1}}`, []string{"data", "262144"}},
		"null for a weight":  {`{"data":[{"loss_fn_inputs":{"weights":{"data":[1,null],"dtype":"float32"}}}]}`, []string{"data[0].loss_fn_inputs.weights.data[1]", "null"}},
		"tensor larger on the inside": {
			`{"data":[{"loss_fn_inputs":{"weights":{"data":[],"dtype":"float32","shape":[4294967296,4294967296],"sparse_crow_indices":[0],"sparse_col_indices":[]}}}]}`, []string{"weights", "16777216"},
		},
	} {
		t.Run("JSON, "+name, func(t *testing.T) {
			body := fmt.Sprintf(`{"model_id":%q,"seq_id":%d,"forward_input":%s}`, run.id, run.next(), c.input)
			ann.fails(t, ann.post(t, "/api/v1/forward", []byte(body)), c.words...)
		})
	}
	t.Run("JSON, a hundred thousand nestings", func(t *testing.T) {
		ann.post(t, "/api/v1/forward", []byte(`{"a":`+strings.Repeat("[", 100_000))).refused(t, "body")
	})
	run.good(t, 1)
	control.good(t, 1)
	if !bytes.Equal(run.weights(t), control.weights(t)) {
		t.Error("refused requests changed the weights")
	}
}

func TestWrongSteps(t *testing.T) {
	ann := start(t).as("ann")
	abused, control := ann.create(t), ann.create(t)
	for _, c := range []struct {
		name, body string // of adam_params
		words      []string
	}{
		{"negative rate", `{"learning_rate":-1}`, []string{"adam_params.learning_rate", "-1"}},
		{"rate beyond float32", `{"learning_rate":1e300}`, []string{"adam_params.learning_rate", "1e+300"}},
		{"rate beyond float64", `{"learning_rate":1e400}`, []string{"learning_rate"}},
		{"NaN", `{"learning_rate":NaN}`, []string{"body"}},
		{"infinity", `{"learning_rate":Infinity}`, []string{"body"}},
		{"text", `{"learning_rate":"fast"}`, []string{"learning_rate", "number"}},
		{"list", `[]`, []string{"adam_params"}},
		{"beta of 1", `{"beta1":1}`, []string{"adam_params.beta1", "below 1"}},
		{"beta above 1", `{"beta2":1.5}`, []string{"adam_params.beta2", "1.5"}},
		{"negative beta", `{"beta1":-0.1}`, []string{"adam_params.beta1", "-0.1"}},
		{"negative eps", `{"eps":-1e-8}`, []string{"adam_params.eps"}},
		{"negative decay", `{"weight_decay":-0.1}`, []string{"adam_params.weight_decay", "-0.1"}},
		{"negative clip", `{"grad_clip_norm":-1}`, []string{"adam_params.grad_clip_norm", "-1"}},
		{"null", `null`, []string{"adam_params"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			abused.finish(t, abused.pass(t, ordinary(2)))
			got := ann.post(t, "/api/v1/optim_step", fmt.Sprintf(`{"model_id":%q,"seq_id":%d,"adam_params":%s,"type":"optim_step"}`, abused.id, abused.next(), c.body))
			if got.status == http.StatusOK {
				ann.fails(t, got, c.words...)
			} else {
				got.refused(t, c.words...)
			}
			// The refused step took nothing: this one uses the gradient.
			abused.finish(t, abused.step(t, adam(1e-3)))
			control.good(t, 2)
		})
	}
	t.Run("another family", func(t *testing.T) {
		ann.post(t, "/api/v1/optim_step", object{"model_id": abused.id, "seq_id": abused.next(), "optimizer_params": object{"type": "dimuon", "learning_rate": 1}}).refused(t, "optimizer_params.type", "dimuon", "adamw")
	})
	t.Run("rate that overflows the weights", func(t *testing.T) {
		abused.finish(t, abused.pass(t, ordinary(3)))
		abused.fails(t, abused.step(t, object{"learning_rate": 1e30, "weight_decay": 1e30}), "finite", "lora_")
	})
	t.Run("reused number", func(t *testing.T) {
		abused.good(t, 4)
		control.good(t, 4)
		ann.post(t, "/api/v1/optim_step", object{"model_id": abused.id, "seq_id": abused.seq, "adam_params": adam(5e-3)}).refused(t, "seq_id")
		// The same again is no reuse.
		ann.finish(t, ann.post(t, "/api/v1/optim_step", object{"model_id": abused.id, "seq_id": abused.seq, "adam_params": adam(1e-3)}))
		p := ordinary(4)
		p.model, p.seq = abused.id, abused.seq-1
		ann.finish(t, ann.post(t, "/api/v1/forward_backward", p.encode(), "Content-Type", "application/x-protobuf"))
		p.data = p.data[:1]
		ann.post(t, "/api/v1/forward_backward", p.encode(), "Content-Type", "application/x-protobuf").refused(t, "seq_id")
	})
	abused.good(t, 5)
	control.good(t, 5)
	if !bytes.Equal(abused.weights(t), control.weights(t)) {
		t.Error("refused steps changed the weights")
	}
}

func TestWrongModels(t *testing.T) {
	ann := start(t).as("ann")
	session := ann.session(t)
	for i, c := range []struct {
		name   string
		change object
		words  []string
	}{
		{"rank 0", object{"rank": 0}, []string{"rank", "0", "power of two"}},
		{"negative rank", object{"rank": -4}, []string{"rank", "-4"}},
		{"rank 3", object{"rank": 3}, []string{"rank", "3", "power of two"}},
		{"rank 1024", object{"rank": 1024}, []string{"rank", "1024", "512"}},
		{"huge rank", object{"rank": 1 << 40}, []string{"rank"}},
		{"rank beyond 64 bits", object{"rank": 1e30}, []string{"rank"}},
		{"half a rank", object{"rank": 4.5}, []string{"rank"}},
		{"rank as text", object{"rank": "4"}, []string{"rank"}},
		{"nothing to train", object{"train_mlp": false, "train_attn": false, "train_unembed": false}, []string{"train_"}},
		{"flag as text", object{"train_mlp": "no"}, []string{"train_mlp"}},
		{"seed as text", object{"seed": "x"}, []string{"seed"}},
		{"half a seed", object{"seed": 0.5}, []string{"seed"}},
		{"huge seed", object{"seed": 1e30}, []string{"seed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := object{"rank": 4, "train_unembed": true, "train_mlp": true, "train_attn": true}
			for k, v := range c.change {
				config[k] = v
			}
			ann.post(t, "/api/v1/create_model", object{"session_id": session, "model_seq_id": i, "base_model": modelName, "lora_config": config}).refused(t, c.words...)
		})
	}
	good := func(seq any) object {
		return object{"session_id": session, "model_seq_id": seq, "base_model": modelName, "lora_config": object{"rank": 4}}
	}
	change := func(key string, value any) object {
		body := good(100)
		if value == nil {
			delete(body, key)
		} else {
			body[key] = value
		}
		return body
	}
	for _, c := range []struct {
		name  string
		body  any
		words []string
	}{
		{"no session", change("session_id", nil), []string{"session_id"}},
		{"unknown session", change("session_id", "nobody"), []string{"session"}},
		{"no model", change("base_model", nil), []string{"base_model"}},
		{"unknown model", change("base_model", "no/such"), []string{"base_model", "no/such", modelName}},
		{"no configuration", change("lora_config", nil), []string{"lora_config"}},
		{"no number", change("model_seq_id", nil), []string{"model_seq_id"}},
		{"negative number", good(-1), []string{"model_seq_id", "-1"}},
		{"unknown optimizer", change("optimizer_config", object{"type": "dimuon", "version": 1}), []string{"optimizer_config", "dimuon", "adamw"}},
		{"metadata as a list", change("user_metadata", []int{1}), []string{"user_metadata"}},
		{"metadata of megabytes", change("user_metadata", object{"x": strings.Repeat("y", 4<<20)}), []string{"user_metadata"}},
	} {
		t.Run(c.name, func(t *testing.T) { ann.post(t, "/api/v1/create_model", c.body).refused(t, c.words...) })
	}
	t.Run("reused number", func(t *testing.T) {
		ann.finish(t, ann.post(t, "/api/v1/create_model", good(200)))
		body := good(200)
		body["lora_config"] = object{"rank": 8}
		ann.post(t, "/api/v1/create_model", body).refused(t, "model_seq_id")
	})
	t.Run("late load of another rank", func(t *testing.T) {
		other := &trainee{client: ann, session: session}
		body := good(300)
		body["lora_config"] = object{"rank": 8}
		other.id = ann.finish(t, ann.post(t, "/api/v1/create_model", body)).result["model_id"].(string)
		other.finish(t, other.post(t, "/api/v1/save_weights", object{"model_id": other.id, "path": "late", "seq_id": other.next(), "overwrite": false}))
		run := ann.create(t)
		run.good(t, 1)
		run.post(t, "/api/v1/load_weights", object{"model_id": run.id, "path": "tinker://" + other.id + "/weights/late", "seq_id": run.next(), "optimizer": true}).refused(t, "rank", "8")
		run.good(t, 2)
	})
}
