package plugins

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Checkpoint files: the names inside a checkpoint directory. The first two are what Hugging Face PEFT reads, so a checkpoint is a PEFT adapter as it stands.
const (
	AdapterConfigFile  = "adapter_config.json"       // PEFT configuration: r, lora_alpha (32, or that of an import; none but alpha_pattern where modules differ), target_modules, base_model_name_or_path
	AdapterWeightsFile = "adapter_model.safetensors" // float32 A and B under PEFT's tensor names
	OptimizerFile      = "optimizer.safetensors"     // first and second moments, under the names of the weights + ".exp_avg" and ".exp_avg_sq"
	AccumulatorFile    = "accumulator.safetensors"   // accumulated gradient, under the names of the weights
	ManifestFile       = "checkpoint.json"           // Manifest
	CompleteFile       = "checkpoint_complete"       // empty; written last
)

// Values of SaveAdapterRequest.ExportNames: the name of the output head in AdapterWeightsFile. With none it is that of ExportPEFT. Layers of experts are stacked, …mlp.experts.w1, as they are kept, unless ExportPEFT is asked for
// without SaveAdapterRequest.StackedExperts: then they are in the form that PEFT reads of the model's class, each expert's tensors apart, …mlp.experts.0.gate_proj, or those of all in one, …mlp.experts.base_layer; an adapter of which PEFT would
// read all forms wrong is refused.
const (
	ExportPEFT = "peft" // base_model.model.lm_head, what PEFT loads; the default
	// ExportTinker is base_model.model.model.unembed_tokens, what the Tinker cookbook's tools expect. Where the head is the embedding's matrix (ModelInfo.TiedHead) those tools would add
	// it to the embedding, which changes the model's input too: there it is lm_head, which they take for what it is, or refuse.
	ExportTinker = "tinker"
)

// Manifest is the content of ManifestFile. A directory without one is a foreign PEFT adapter.
type Manifest struct {
	Format       int    `json:"format"` // 3: sealed, and AdapterConfigFile has another scale than 32 / r; 2: sealed; 1, of older versions, not
	Scope        string `json:"scope"`  // "weights", "optimizer", "accumulator"
	BaseModel    string `json:"base_model"`
	ModelHash    string `json:"model_hash"`
	Engine       string `json:"engine"`   // program version
	Topology     string `json:"topology"` // plugin and devices
	Arithmetic   string `json:"arithmetic"`
	Rank         int    `json:"rank"`
	Seed         uint64 `json:"seed"`
	TrainAttn    bool   `json:"train_attn"`
	TrainMLP     bool   `json:"train_mlp"`
	TrainUnembed bool   `json:"train_unembed"`
	Step         int64  `json:"step"`
	Version      int64  `json:"version"`
	// With an accumulator: the first failed pass since the last step, as message and as name of its Kind, and the number of successful ones.
	WindowFailure     string            `json:"window_failure,omitempty"`
	WindowFailureKind string            `json:"window_failure_kind,omitempty"`
	WindowPasses      int               `json:"window_passes,omitempty"`
	Metadata          map[string]string `json:"metadata,omitempty"`
	SHA256            map[string]string `json:"sha256"` // of every other file, hex
	// Seal is the SHA-256, hex, of the manifest's own text with zeros in the seal's place. Encode sets it.
	Seal string `json:"seal,omitempty"`
}

const (
	sealedFormat = 2
	// ScaledFormat is that of a checkpoint whose adapter has another scale than 32 / r. Versions that knew no other would multiply it into B, and refuse the format.
	ScaledFormat = 3
)

// noSeal stands in a seal's place while it is computed.
var noSeal = strings.Repeat("0", hex.EncodedLen(sha256.Size))

// Encode gives the content of ManifestFile, sealed, in ScaledFormat if m says so, else in that before it, which older versions read too. The manifest itself stays as it is.
func (m *Manifest) Encode() ([]byte, error) {
	sealed := *m
	sealed.Format, sealed.Seal = max(sealedFormat, min(m.Format, ScaledFormat)), noSeal
	text, err := json.MarshalIndent(sealed, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode a checkpoint's manifest: %w", err)
	}
	sum := sha256.Sum256(text)
	at := bytes.LastIndex(text, []byte(noSeal)) // it is the last field
	hex.Encode(text[at:], sum[:])
	return text, nil
}

// ParseManifest reads the content of ManifestFile and checks its seal. KindInvalid if it is no manifest, or not as it was written.
func ParseManifest(text []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, Invalidf("path", "%s: %v", ManifestFile, err)
	}
	if m.Format == 1 && m.Seal == "" {
		return m, nil
	}
	sum := sha256.Sum256(bytes.Replace(text, []byte(m.Seal), []byte(noSeal), 1))
	if m.Seal == "" || m.Seal != hex.EncodeToString(sum[:]) {
		return nil, Invalidf("path", "%s is damaged: it does not have the checksum that it states itself", ManifestFile)
	}
	return m, nil
}

// scopeNames are the values of Manifest.Scope, by Scope.
var scopeNames = []string{"weights", "optimizer", "accumulator"}

// String gives the scope's name in a Manifest.
func (s Scope) String() string {
	if s < 0 || int(s) >= len(scopeNames) {
		return fmt.Sprintf("scope(%d)", int(s))
	}
	return scopeNames[s]
}

// Check tells whether a checkpoint can be loaded to a scope into a backend of the base model with that hash. Errors are KindInvalid.
func (m *Manifest) Check(modelHash string, scope Scope) error {
	if m.Format < 1 || m.Format > ScaledFormat {
		return Invalidf("path", "%s: format %d is not known: 1, 2, 3", ManifestFile, m.Format)
	}
	has := slices.Index(scopeNames, m.Scope)
	if has < 0 {
		return Invalidf("path", "%s: scope %.100q is not known: %s", ManifestFile, m.Scope, strings.Join(scopeNames, ", "))
	}
	if has < int(scope) {
		return Invalidf("scope", "the checkpoint holds %s only", m.Scope)
	}
	if m.ModelHash != modelHash {
		return Invalidf("base_model", "the checkpoint belongs to another base model, %.200q", m.BaseModel)
	}
	if m.Step < 0 || m.WindowPasses < 0 {
		return Invalidf("path", "%s: step %d and window_passes %d must be at least 0", ManifestFile, m.Step, m.WindowPasses)
	}
	return nil
}
