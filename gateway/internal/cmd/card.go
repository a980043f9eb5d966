package cmd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"gopkg.in/yaml.v3"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/gateway/internal/hub"
)

// cardMark is in every card that this program writes: one without it is somebody's own.
const cardMark = "<!-- written by tinsmith; without this line the next push leaves this file as it is -->"

const cardFile = "README.md"

// about is what a server says of an adapter beside its files.
type about struct {
	Rank          int       `json:"rank"`
	Attention     bool      `json:"attention"`
	MLP           bool      `json:"mlp"`
	Unembed       bool      `json:"unembed"`
	CreatedAt     time.Time `json:"created_at"`
	TrainedTokens int64     `json:"trained_tokens"`
	Origin        origin    `json:"origin"`
	Began         origin    `json:"began"`
}

// readAbout decodes the header of an export. Servers of older versions send none.
func readAbout(header string) (about, error) {
	if header == "" {
		return about{}, nil
	}
	var a about
	text, err := strconv.Unquote(header)
	if err == nil {
		err = json.Unmarshal([]byte(text), &a)
	}
	if err != nil {
		return about{}, fmt.Errorf("what the server says of the adapter: %w", err)
	}
	return a, nil
}

// parts names what the adapter is on.
func (a about) parts() string {
	var on []string
	for _, part := range []struct {
		trained bool
		name    string
	}{{a.Attention, "attention"}, {a.MLP, "MLP"}, {a.Unembed, "output head"}} {
		if part.trained {
			on = append(on, part.name)
		}
	}
	return strings.Join(on, ", ")
}

// writeCard writes the model card of what was exported into its folder.
func (e *exporting) writeCard(ctx context.Context, dir string) error {
	losses, err := e.losses(ctx)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	head := map[string]any{"pipeline_tag": "text-generation", "tags": []string{"lora", "tinsmith"}, "library_name": "peft"}
	what, use := "A LoRA adapter", "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), THIS)"
	if e.merged {
		head["library_name"], what, use = "transformers", "A model with a LoRA adapter merged into it", "AutoModelForCausalLM.from_pretrained(THIS)"
	}
	if hub.Repository(e.model) {
		head["base_model"] = e.model
		head["base_model_relation"] = map[bool]string{true: "finetune", false: "adapter"}[e.merged]
	}
	var card bytes.Buffer
	card.WriteString("---\n")
	encoder := yaml.NewEncoder(&card)
	encoder.SetIndent(2)
	if err := encoder.Encode(head); err != nil {
		return err
	}
	fmt.Fprintf(&card, "---\n\n%s\n\n%s, trained with Tinsmith.\n\n| | |\n|---|---|\n", cardMark, what)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&card, "| %s | %s |\n", name, value)
		}
	}
	row("base model", cell(e.model))
	row("hash of the base model's weights", cell(e.hash))
	if e.about.Rank > 0 {
		row("rank", strconv.Itoa(e.about.Rank))
	}
	row("on", e.about.parts())
	row("run or checkpoint", cell(e.path))
	row("steps of the optimizer", cell(e.step))
	if e.about.TrainedTokens > 0 {
		row("tokens trained", strconv.FormatInt(e.about.TrainedTokens, 10))
	}
	if !e.about.CreatedAt.IsZero() {
		row("made", e.about.CreatedAt.UTC().Format(time.DateTime)+" UTC")
	}
	row("imported from", cell(e.about.Origin.Source))
	row("SHA-256 of the weights as they were imported", cell(e.about.Origin.SHA256))
	row("began as an import from", cell(e.about.Began.Source))
	row("SHA-256 of the weights that it began with", cell(e.about.Began.SHA256))
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".safetensors" {
			continue
		}
		sum, err := sumOf(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		row("SHA-256 of "+cell(entry.Name()), cell(sum))
	}
	writeLosses(&card, losses)
	fmt.Fprintf(&card, "\n    %s\n", use)
	return durable.WriteFile(filepath.Join(dir, cardFile), card.Bytes(), 0o644)
}

// cell writes a text of somebody's as a cell of a table that is not markup.
func cell(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == '`' || r == '|' || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
