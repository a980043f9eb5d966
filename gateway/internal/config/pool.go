package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// maxBackends bounds the backends of one model.
const maxBackends = 512

// Backend is one backend of a model.
type Backend struct {
	// Name is the model's, with "#1", "#2", … behind it where it has several. No model is called so.
	Name    string
	Plugin  string          // as Model.Plugin
	Remote  *Remote         // as Model.Remote
	Section json.RawMessage // as Model.Backend
}

// Members are the model's backends, at least one.
func (m *Model) Members() []Backend {
	if len(m.Pool) > 0 {
		return m.Pool
	}
	return []Backend{{Name: m.Name, Plugin: m.Plugin, Remote: m.Remote, Section: m.Backend}}
}

// BackendNames are the names of the members where there are several, else none.
func (m *Model) BackendNames() []string {
	var names []string
	for _, b := range m.Pool {
		names = append(names, b.Name)
	}
	return names
}

// BackendsID is another one when the model has other backends, or has them in another order. Where the gateway finds its own certificates does not change it.
func (m *Model) BackendsID() string {
	sum := sha256.New()
	for _, b := range m.Pool {
		address := ""
		if b.Remote != nil {
			address = b.Remote.Address
		}
		fmt.Fprintf(sum, "%q %q %q\n", b.Plugin, address, b.Section)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// splitBackends makes the model's backends of what the file says of them. Paths are relative to dir.
func (m *Model) splitBackends(dir string) error {
	sections, key := m.Sections, func(i int) string { return fmt.Sprintf("backends[%d]", i) }
	if m.Sections != nil && (len(sections) < 1 || len(sections) > maxBackends) {
		return fmt.Errorf("backends: has %d entries, must have 1 … %d", len(sections), maxBackends)
	}
	if m.Sections == nil {
		if m.Replicas < 1 || m.Replicas > maxBackends {
			return fmt.Errorf("replicas: %d is not from 1 to %d", m.Replicas, maxBackends)
		}
		key = func(int) string { return "backend" }
		for range m.Replicas {
			sections = append(sections, m.Backend)
		}
	}
	var pool []Backend
	for i, section := range sections {
		b, err := splitSection(section, m.Plugin, dir, key(i))
		if err != nil {
			return err
		}
		b.Name = fmt.Sprintf("%s#%d", m.Name, i+1)
		pool = append(pool, b)
	}
	if m.Replicas > 1 && pool[0].Remote != nil {
		return errors.New("replicas: a backend with an address is one that runs already; give each of several its own section under backends")
	}
	m.Plugin, m.Remote, m.Backend = pool[0].Plugin, pool[0].Remote, pool[0].Section
	if len(pool) > 1 {
		m.Pool = pool
	}
	return nil
}

// sectionKey is the key of a backend's section; key is the model's.
func (m *Model) sectionKey(key string, i int) string {
	if m.Sections == nil {
		return key + ".backend"
	}
	return fmt.Sprintf("%s.backends[%d]", key, i)
}

// validate checks the values. The error names the key, which is that of the section. addresses has those of the backends before, with their keys.
func (b *Backend) validate(key string, addresses map[string]string) error {
	if b.Remote != nil {
		if err := b.Remote.validate(); err != nil {
			return fmt.Errorf("%s.%w", key, err)
		}
		if other, taken := addresses[b.Remote.Address]; taken { // they would take it from each other for ever
			return fmt.Errorf("%s.address: %q is already that of %s: a backend has one model", key, b.Remote.Address, other)
		}
		addresses[b.Remote.Address] = key
	}
	if !pluginName.MatchString(b.Plugin) && !(b.Remote != nil && b.Plugin == "") {
		return fmt.Errorf("%s.plugin: %q is not a plugin name (lower-case letters, digits and - only)", key, b.Plugin)
	}
	return nil
}
