package hostile

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// entry is one file of a tar.
type entry struct {
	header tar.Header
	body   []byte
}

func file(name string, body []byte) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(body))}, body}
}

func packed(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&e.header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// safetensors encodes float32 tensors, or, with header, any header before the data.
func safetensors(header string, data []byte) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...)
}

// exported are the files of a small adapter as the server exports them.
func (r *trainee) exported(t testing.TB) map[string][]byte {
	t.Helper()
	r.finish(t, r.post(t, "/api/v1/save_weights_for_sampler", object{"model_id": r.id, "path": "exported", "seq_id": r.next()}))
	link := r.send(t, http.MethodGet, "/api/v1/training_runs/"+r.id+"/checkpoints/sampler_weights/exported/archive", nil).ok(t)["url"].(string)
	got, err := http.Get(link)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	out := map[string][]byte{}
	for in := tar.NewReader(got.Body); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if out[h.Name], err = io.ReadAll(in); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWrongImports(t *testing.T) {
	s := start(t)
	ann := s.as("ann")
	run := ann.create(t)
	run.good(t, 1)
	good := run.exported(t)
	config, weights := good["adapter_config.json"], good["adapter_model.safetensors"]
	if config == nil || weights == nil {
		t.Fatalf("the archive has %d files", len(good))
	}
	send := func(body []byte, query string) answer {
		return ann.post(t, "/api/v1/tinsmith/import?"+query, body, "Content-Type", "application/x-tar")
	}
	const query = "base_model=" + modelName + "&name=imported"
	both := func(config, weights []byte) []byte {
		return packed(t, file("adapter_config.json", config), file("adapter_model.safetensors", weights))
	}
	send(both(config, weights), query).ok(t)
	changed := func(key string, value any) []byte {
		var c object
		if err := json.Unmarshal(config, &c); err != nil {
			t.Fatal(err)
		}
		c[key] = value
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	size := int(binary.LittleEndian.Uint64(weights))
	header, data := string(weights[8:8+size]), weights[8+size:]
	withNaN := bytes.Clone(weights)
	binary.LittleEndian.PutUint32(withNaN[8+size+400:], math.Float32bits(nan))
	withInf := bytes.Clone(weights)
	binary.LittleEndian.PutUint32(withInf[8+size:], math.Float32bits(inf))
	sparse := packed(t, file("adapter_config.json", config))
	sparse = append(sparse[:len(sparse)-1024], sparseEntry(t, "adapter_model.safetensors", 8<<30)...)
	for _, c := range []struct {
		name  string
		body  []byte
		words []string
	}{
		{"nothing", nil, []string{"adapter_config.json"}},
		{"no tar", []byte(strings.Repeat("x", 2000)), []string{"tar"}},
		{"cut tar", both(config, weights)[:3000], []string{"upload"}},
		{"only others", packed(t, file("evil", []byte("x"))), []string{"adapter_config.json"}},
		{"paths out", packed(t, file("../adapter_config.json", config), file("/adapter_model.safetensors", weights)), []string{"adapter_config.json"}},
		{"twice", packed(t, file("adapter_config.json", config), file("./adapter_config.json", config)), []string{"twice"}},
		{"link", packed(t, entry{tar.Header{Name: "adapter_config.json", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, nil}, file("adapter_model.safetensors", weights)), []string{"adapter_config.json", "regular"}},
		{"hard link", packed(t, entry{tar.Header{Name: "adapter_model.safetensors", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}, nil}, file("adapter_config.json", config)), []string{"adapter_model.safetensors", "regular"}},
		{"device", packed(t, entry{tar.Header{Name: "adapter_config.json", Typeflag: tar.TypeChar}, nil}), []string{"adapter_config.json", "regular"}},
		{"sparse of 8 GiB", sparse, []string{"sparse"}},
		{"config that is no JSON", both([]byte("{"), weights), []string{"adapter_config.json"}},
		{"config of deep nesting", both([]byte(strings.Repeat(`{"a":`, 1<<20)), weights), []string{"adapter_config.json"}},
		{"rank 0", both(changed("r", 0), weights), []string{"r 0"}},
		{"rank as text", both(changed("r", "4"), weights), []string{"adapter_config.json"}},
		{"another rank", both(changed("r", 8), weights), []string{"lora_"}},
		{"huge rank", both(changed("r", 1<<30), weights), []string{"r 1073741824"}},
		{"alpha 0", both(changed("lora_alpha", 0), weights), []string{"lora_alpha"}},
		{"huge alpha", both(changed("lora_alpha", 1e300), weights), []string{"lora_alpha"}},
		{"DoRA", both(changed("use_dora", true), weights), []string{"use_dora"}},
		{"ranks by pattern that the tensors have not", both(changed("rank_pattern", object{"q_proj": 8}), weights), []string{"q_proj.lora_A", "shape"}},
		{"rank 0 by pattern", both(changed("rank_pattern", object{"q_proj": 0}), weights), []string{"rank_pattern", "q_proj"}},
		{"huge alpha by pattern", both(changed("alpha_pattern", object{"q_proj": 1e300}), weights), []string{"alpha_pattern", "q_proj"}},
		{"a pattern that is no expression", both(changed("alpha_pattern", object{"(": 8}), weights), []string{"alpha_pattern"}},
		{"a pattern that is an expression without end", both(changed("alpha_pattern", object{strings.Repeat("(a*)*", 200): 8}), weights), []string{"alpha_pattern"}},
		{"patterns without end", both(changed("alpha_pattern", patterns(5000)), weights), []string{"alpha_pattern"}},
		{"another base", both(changed("init_lora_weights", "pissa"), weights), []string{"init_lora_weights", "path_initial_model_for_weight_conversion"}},
		{"a base's weight that is another", both(config, withCopy(t, header, data)), []string{"base_layer.weight", "shape"}},
		{"not LoRA", both(changed("peft_type", "IA3"), weights), []string{"peft_type", "IA3"}},
		{"NaN", both(config, withNaN), []string{"NaN", "lora_A", "value 100"}},
		{"infinity", both(config, withInf), []string{"Inf", "lora_A", "value 0"}},
		{"no weights", both(config, nil), []string{"safetensors"}},
		{"cut weights", both(config, weights[:len(weights)-100]), []string{"safetensors"}},
		{"trailing bytes", both(config, append(bytes.Clone(weights), 0, 0, 0, 0)), []string{"safetensors"}},
		{"huge header", both(config, append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), weights[8:]...)), []string{"header"}},
		{"header of nesting", both(config, safetensors(strings.Repeat(`{"a":`, 1<<18), data)), []string{"safetensors"}},
		{"negative offset", both(config, safetensors(strings.Replace(header, `"data_offsets":[0,`, `"data_offsets":[-1,`, 1), data)), []string{"safetensors"}},
		{"another dtype", both(config, safetensors(strings.Replace(header, `"F32"`, `"I32"`, 1), data)), []string{"I32"}},
		{"unknown dtype", both(config, safetensors(strings.Replace(header, `"F32"`, `"F128"`, 1), data)), []string{"F128"}},
		{"unknown tensor", both(config, safetensors(strings.Replace(header, "q_proj", "x_proj", 1), data)), []string{"x_proj"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := send(c.body, query)
			got.refused(t, c.words...)
			if strings.Contains(string(got.body), s.Dir) {
				t.Errorf("the message shows where the server keeps its files: %s", got)
			}
		})
	}
	for _, q := range []string{"", "base_model=" + modelName, "name=x", "base_model=nobody&name=x", "base_model=" + modelName + "&name=../x", "base_model=" + modelName + "&name=" + strings.Repeat("x", 5000)} {
		t.Run(fmt.Sprintf("query %.60s", q), func(t *testing.T) { send(both(config, weights), q).refused(t) })
	}
	if left, err := os.ReadDir(filepath.Join(s.Dir, "data", "incoming")); err == nil && len(left) != 0 {
		t.Errorf("%d uploads were left", len(left))
	}
	control := ann.create(t)
	for _, r := range []*trainee{run, control} {
		if r == control {
			r.good(t, 1)
		}
		r.good(t, 2)
	}
	if !bytes.Equal(run.weights(t), control.weights(t)) {
		t.Error("refused imports changed the weights")
	}
}

// patterns is a pattern of n keys.
func patterns(n int) object {
	o := object{}
	for i := range n {
		o[fmt.Sprint("layers.", i)] = 8
	}
	return o
}

// withCopy adds a weight of the output head to an adapter, as PEFT does, but of one element.
func withCopy(t testing.TB, header string, data []byte) []byte {
	t.Helper()
	entry := fmt.Sprintf(`,"base_model.model.lm_head.base_layer.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[%d,%d]}}`, len(data), len(data)+4)
	return safetensors(strings.TrimRight(header, " }")+"}"+entry, append(bytes.Clone(data), 0, 0, 0, 0))
}

// sparseEntry is a tar entry of a few hundred bytes that unpacks to size zeros (the PAX form 1.0 of GNU tar).
func sparseEntry(t testing.TB, name string, size int64) []byte {
	t.Helper()
	record := func(key, value string) string {
		line := " " + key + "=" + value + "\n"
		n := len(line) + 2
		for len(fmt.Sprint(n))+len(line) != n {
			n++
		}
		return fmt.Sprint(n) + line
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", name) + record("GNU.sparse.realsize", fmt.Sprint(size))
	block := func(b []byte) []byte { return append(b, make([]byte, (512-len(b)%512)%512)...) }
	head := func(name string, kind byte, size int) []byte {
		h := make([]byte, 512)
		copy(h, name)
		copy(h[100:], "0000600\x000000000\x000000000\x00")
		copy(h[124:], fmt.Sprintf("%011o\x00", size))
		copy(h[136:], "00000000000\x00")
		h[156] = kind
		copy(h[257:], "ustar\x0000")
		copy(h[148:], "        ")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		return h
	}
	areas := block([]byte("0\n"))
	out := append(head("pax", 'x', len(pax)), block([]byte(pax))...)
	out = append(out, head(name, '0', len(areas))...)
	return append(append(out, areas...), make([]byte, 1024)...)
}
