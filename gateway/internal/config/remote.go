package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// Remote is a backend that runs on another machine, or on this one without being started by the gateway.
type Remote struct {
	// Address is HOST:PORT, where `bin/plugins/NAME serve` listens.
	Address string `json:"address"`
	// Model is the model's directory on that machine; empty: the only one that the backend may load.
	Model string `json:"model"`
	// TLS is required for an address that is not this machine's loopback.
	TLS RemoteTLS `json:"tls"`
}

// RemoteTLS names PEM files.
type RemoteTLS struct {
	CertFile string `json:"cert_file"` // the gateway's certificate
	KeyFile  string `json:"key_file"`  // its private key
	CAFile   string `json:"ca_file"`   // the authority of the backend's certificate
}

// Files are the same for package plugins.
func (t RemoteTLS) Files() plugins.TLSFiles {
	return plugins.TLSFiles{Cert: t.CertFile, Key: t.KeyFile, CA: t.CAFile}
}

// splitSection takes what is the gateway's out of a backend section: which plugin, if it is not the usual one, and where it runs. Of a section with an address the plugin gets the rest. key is that of the section.
func splitSection(text json.RawMessage, plugin, dir, key string) (Backend, error) {
	out := Backend{Plugin: plugin, Section: text}
	var section map[string]json.RawMessage
	if json.Unmarshal(text, &section) != nil {
		return out, nil //nolint:nilerr // the plugin refuses it
	}
	if _, ok := section["address"]; !ok {
		var plugin string
		if json.Unmarshal(section["plugin"], &plugin) == nil && plugin != "" {
			out.Plugin = plugin
		}
		return out, nil
	}
	own := map[string]json.RawMessage{}
	for _, key := range []string{"address", "model", "tls", "plugin"} {
		if value, ok := section[key]; ok {
			own[key] = value
			if key != "plugin" {
				delete(section, key)
			}
		}
	}
	text, err := json.Marshal(own)
	if err != nil {
		return out, err
	}
	var remote struct {
		Remote
		Plugin string `json:"plugin"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&remote); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return out, fmt.Errorf("%s.%s: expected text, or a mapping of texts for tls, not %s", key, strings.TrimPrefix(wrong.Field, "Remote."), wrong.Value)
		}
		return out, fmt.Errorf("%s.tls: %w: known keys are cert_file, key_file, ca_file", key, err)
	}
	out.Remote, out.Plugin = &remote.Remote, remote.Plugin
	for _, p := range []*string{&out.Remote.TLS.CertFile, &out.Remote.TLS.KeyFile, &out.Remote.TLS.CAFile} {
		*p = relativeTo(dir, *p)
	}
	out.Section, err = json.Marshal(section)
	return out, err
}

// validate checks the values. The error names the key within the backend section.
func (r *Remote) validate() error {
	files := r.TLS.Files()
	if files.Used() && (files.Cert == "" || files.Key == "" || files.CA == "") {
		return errors.New("tls: cert_file, key_file and ca_file are required together")
	}
	if err := plugins.CheckAddress(r.Address, files.Used()); err != nil {
		if !files.Used() {
			return fmt.Errorf("address: %w (tls.cert_file, tls.key_file, tls.ca_file)", err)
		}
		return fmt.Errorf("address: %w", err)
	}
	if r.Model != "" && (!filepath.IsAbs(r.Model) || filepath.Clean(r.Model) != r.Model) {
		return fmt.Errorf("model: %q is not a clean absolute path on the backend's machine", r.Model)
	}
	return nil
}
