package config

import (
	"fmt"
	"testing"
)

// TestPools: which backends a model has, by what the file says.
func TestPools(t *testing.T) {
	for _, c := range []struct {
		name, model string
		want        []string // name, plugin, address and section of each
		named       bool     // they have names of their own
	}{
		{"one", "", []string{`a single  {"plugin":"single"}`}, false},
		{"one replica", "replicas: 1", []string{`a single  {"plugin":"single"}`}, false},
		{"one section", "backends: [{plugin: fake}]", []string{`a fake  {"plugin":"fake"}`}, false},
		{"replicas", "backend: {plugin: fake, seed: 3}, replicas: 2", []string{`a#1 fake  {"plugin":"fake","seed":3}`, `a#2 fake  {"plugin":"fake","seed":3}`}, true},
		{"sections", `backends: [{plugin: fake}, {threads: 2}, {address: "127.0.0.1:7000", dtype: bfloat16}]`, []string{
			`a#1 fake  {"plugin":"fake"}`, `a#2 single  {"threads":2}`, `a#3  127.0.0.1:7000 {"dtype":"bfloat16"}`,
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := Parse("test.yaml", fmt.Appendf(nil, "models:\n  - {name: a, path: /models/a, %s}\n", c.model))
			if err != nil {
				t.Fatal(err)
			}
			m := cfg.Models[0]
			var got []string
			for _, b := range m.Members() {
				address := ""
				if b.Remote != nil {
					address = b.Remote.Address
				}
				got = append(got, fmt.Sprintf("%s %s %s %s", b.Name, b.Plugin, address, b.Section))
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if names := m.BackendNames(); (len(names) > 0) != c.named {
				t.Errorf("names %q", names)
			}
			if first := m.Members()[0]; m.Plugin != first.Plugin || string(m.Backend) != string(first.Section) {
				t.Errorf("the model's own are not the first backend's: %s %s", m.Plugin, m.Backend)
			}
		})
	}
}

// TestBackendsID: it is another one for other backends, and for the same ones in another order.
func TestBackendsID(t *testing.T) {
	id := func(model string) string {
		t.Helper()
		cfg, err := Parse("test.yaml", fmt.Appendf(nil, "models:\n  - {name: a, path: /models/a, %s}\n", model))
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Models[0].BackendsID()
	}
	const two = `backends: [{plugin: fake, seed: 3}, {address: "127.0.0.1:7000"}]`
	of := id(two)
	if again := id(two + ", aliases: [b]"); again != of {
		t.Error("it is another one for the same backends")
	}
	for _, other := range []string{
		`backends: [{address: "127.0.0.1:7000"}, {plugin: fake, seed: 3}]`, `backends: [{plugin: fake, seed: 4}, {address: "127.0.0.1:7000"}]`, `backends: [{plugin: fake, seed: 3}, {address: "127.0.0.1:7001"}]`,
		`backends: [{plugin: fake, seed: 3}, {address: "127.0.0.1:7000"}, {plugin: fake}]`,
	} {
		if id(other) == of {
			t.Errorf("it is the same one for %s", other)
		}
	}
}
