package selftest

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
)

// adapterFiles are what PEFT reads.
var adapterFiles = []string{"adapter_config.json", "adapter_model.safetensors"}

// checkPEFT looks at what PEFT looks at first.
func checkPEFT(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, adapterFiles[0]))
	if err != nil {
		return err
	}
	var config struct {
		Type string `json:"peft_type"`
		Rank int    `json:"r"`
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return fmt.Errorf("%s: %w", adapterFiles[0], err)
	}
	if config.Type != "LORA" || config.Rank != rank {
		return fmt.Errorf("%s: peft_type %q and r %d; expected LORA and %d", adapterFiles[0], config.Type, config.Rank, rank)
	}
	return nil
}

// importAdapter gives PEFT's two files to the server, and nothing else that an export may have put beside them.
func (t *tests) importAdapter(ctx context.Context, dir string) (training, sampling string, err error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeAdapter(w, dir)) }()
	defer r.Close()
	var out struct {
		Training string `json:"training_path"`
		Sampling string `json:"sampler_path"`
	}
	query := url.Values{"base_model": {t.model}, "name": {"imported"}}
	_, err = t.send(ctx, "/api/v1/tinsmith/import?"+query.Encode(), "application/x-tar", r, &out)
	return out.Training, out.Sampling, err
}

func writeAdapter(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	for _, name := range adapterFiles {
		if err := addFile(t, dir, name); err != nil {
			return err
		}
	}
	return t.Close()
}

func addFile(t *tar.Writer, dir, name string) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: info.Size(), Typeflag: tar.TypeReg, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}
