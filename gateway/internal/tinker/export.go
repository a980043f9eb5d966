package tinker

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// Headers of an export, beside the tar.
const (
	exportPath  = "X-Tinsmith-Path"       // what was exported
	exportModel = "X-Tinsmith-Base-Model" // the served name of the base model
	exportHash  = "X-Tinsmith-Model-Hash" // of the base model that the adapter was trained on
	exportStep  = "X-Tinsmith-Step"
	exportCard  = "X-Tinsmith-Card" // what a model card says beside: JSON, quoted so that it is ASCII
)

// exportAdapter sends the adapter that `path` means (a checkpoint, or a run) as a plain tar, with `names` of its tensors: peft, the default, or tinker. Layers of experts are stacked but in what was saved with those of PEFT.
func (s *Service) exportAdapter(c call) (any, error) {
	e, err := s.core.Export(c.Request.Context(), c.owner, c.Query("path"), c.Query("names"))
	if err != nil {
		return nil, err
	}
	return stream(func(c call) error {
		defer e.Close()
		c.Header(exportPath, e.Path)
		c.Header(exportModel, e.ServedModel)
		c.Header(exportHash, e.ModelHash)
		c.Header(exportStep, strconv.FormatInt(e.Step, 10))
		card, err := exportedCard(e)
		if err != nil {
			return err
		}
		c.Header(exportCard, card)
		sendTar(c.Context, "adapter.tar", e.Write)
		return nil
	}), nil
}

// exportedCard is what is known of an exported adapter and is in none of its files.
func exportedCard(e *runs.Export) (string, error) {
	card := map[string]any{"rank": e.LoRA.Rank, "attention": e.LoRA.TrainAttn, "mlp": e.LoRA.TrainMLP, "unembed": e.LoRA.TrainUnembed, "created_at": e.CreatedAt.UTC()}
	if e.Trained > 0 {
		card["trained_tokens"] = e.Trained
	}
	if e.Origin != nil {
		card["origin"] = e.Origin
	}
	if e.Began != nil {
		card["began"] = e.Began
	}
	b, err := json.Marshal(card)
	if err != nil {
		return "", err
	}
	return strconv.QuoteToASCII(string(b)), nil
}

// modelFiles lists the files of the model directory behind `model`, a served name or alias, or sends the one that `file` names, with ranges. Tokenizer and configuration are everybody's: clients cannot do
// without. Weights are given to administrators' keys, and to everybody where nobody needs a key.
func (s *Service) modelFiles(c call) (any, error) {
	name := c.Query("model")
	dir := ""
	for _, m := range s.core.Models() {
		if m.Name == name || slices.Contains(m.Aliases, name) {
			name, dir = m.Name, s.opts.Directories[m.Name]
		}
	}
	if dir == "" {
		return nil, notFoundf("model: %.200q is not served here", c.Query("model"))
	}
	wanted := c.Query("file")
	if wanted == "" {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		list := []gin.H{}
		for _, e := range entries {
			if _, info := modelFile(dir, e.Name()); info != nil {
				list = append(list, gin.H{"name": e.Name(), "size": info.Size()})
			}
		}
		return gin.H{"model": name, "files": list}, nil
	}
	path, info := modelFile(dir, wanted)
	if info == nil {
		return nil, notFoundf("file: the directory of %s has no %.200q that is given out", name, wanted)
	}
	if isWeights(wanted) && s.auth.Ring.Required() && !s.auth.Admin(keys.Credential(c.Request.Header)) {
		return nil, &refusal{http.StatusForbidden, "file: the weights of " + name + " are given to administrators' keys only; use your own copy of the model"}
	}
	return stream(func(c call) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		c.Header("Content-Type", "application/octet-stream")
		http.ServeContent(c.Writer, c.Request, "", info.ModTime(), f)
		return nil
	}), nil
}

func isWeights(name string) bool { return filepath.Ext(name) == ".safetensors" }

// given are the ends of the names of files that make a model, beside its licence.
var given = []string{".json", ".safetensors", ".jinja", ".txt", ".model", ".tiktoken"}

// modelFile finds a regular file of a model directory that may be given out; nil without one. Links lead out of the directory only to where the Hugging Face cache keeps its files.
func modelFile(dir, name string) (path string, info os.FileInfo) {
	upper := strings.ToUpper(name)
	if !slices.Contains(given, filepath.Ext(name)) && !strings.HasPrefix(upper, "LICENSE") && !strings.HasPrefix(upper, "NOTICE") || name != filepath.Base(name) || name[0] == '.' {
		return "", nil
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", nil
	}
	path, err = filepath.EvalSymlinks(filepath.Join(root, name))
	if err != nil {
		return "", nil
	}
	cache := filepath.Join(root, "..", "..", "blobs")
	if in := filepath.Dir(path); in != root && (filepath.Base(filepath.Dir(root)) != "snapshots" || in != cache) {
		return "", nil
	}
	info, err = os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return "", nil
	}
	return path, info
}
