package merge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// expertKinds are the layers of experts in the Tinker convention, whose tensors have those of all experts, and the names that one expert's have in a model of Hugging Face.
var expertKinds = map[string]string{"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}

// expertName is the name of a tensor of all experts: what comes before the kind, the kind, and what comes behind it.
var expertName = regexp.MustCompile(`^(.+\.experts\.)(w[123])(\.lora_[AB]\.weight)$`)

// denseName is the name of a tensor of an MLP that is no expert's.
var denseName = regexp.MustCompile(`\.mlp\.(gate_proj|up_proj|down_proj)\.lora_[AB]\.weight$`)

// expertPart is a tensor of one expert, and where it lies in the file.
type expertPart struct {
	entry
	from int64
}

// SeparateExperts gives an adapter whose layers of experts are stacked, as checkpoints have them, the tensors of each expert by themselves, as PEFT loads them: what all experts share is there for each of them. The checkpoint's manifest, whose checksums are of the file as it was, goes.
//
// With leaves the adapter is for PEFT: one with layers that have experts and layers that have none is refused, of which PEFT would leave out some tensors without an error, and keys of alpha_pattern are for all experts of a layer. Else it is
// for Prepare, and each expert has a key of its own.
func SeparateExperts(ctx context.Context, dir string, leaves bool) error {
	path := filepath.Join(dir, plugins.AdapterWeightsFile)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	tensors, err := readTensors(ctx, Directory(dir), File{plugins.AdapterWeightsFile, info.Size()})
	if err != nil {
		return err
	}
	parts, experts, err := separated(tensors, leaves)
	if err != nil || parts == nil {
		return err
	}
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	sort.Strings(names)
	entries, at := map[string]entry{}, int64(0)
	for _, name := range names {
		e := parts[name].entry
		size := e.Offsets[1] - e.Offsets[0]
		e.Offsets = [2]int64{at, at + size}
		entries[name], at = e, at+size
	}
	head, err := encodeHeader(names, entries)
	if err != nil {
		return err
	}
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := writeFile(path+".new", func(w io.Writer) error {
		if _, err := w.Write(head); err != nil {
			return err
		}
		for _, name := range names {
			p := parts[name]
			if _, err := io.Copy(w, io.NewSectionReader(in, p.from, p.Offsets[1]-p.Offsets[0])); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := separateTargets(filepath.Join(dir, plugins.AdapterConfigFile), experts, leaves); err != nil {
		return err
	}
	for _, name := range []string{plugins.ManifestFile, plugins.CompleteFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(path+".new", path)
}

// maxExperts bounds the experts of a layer.
const maxExperts = 4096

// separated gives all tensors of the file, those of experts one by one, and how many experts there are; nil if there are none.
func separated(tensors map[string]tensor, leaves bool) (parts map[string]expertPart, experts int64, err error) {
	mixed := ""
	for name, t := range tensors {
		if expertName.MatchString(name) {
			if len(t.shape) != 3 || t.shape[0] < 1 || t.shape[0] > maxExperts {
				return nil, 0, fmt.Errorf("%s: tensor %.200q has shape %v, not that of a matrix for each expert, of at most %d", plugins.AdapterWeightsFile, name, t.shape, maxExperts)
			}
			experts = max(experts, t.shape[0])
		} else if denseName.MatchString(name) {
			mixed = name
		}
	}
	if experts == 0 {
		return nil, 0, nil
	}
	if leaves && mixed != "" {
		return nil, 0, fmt.Errorf("the adapter is on layers with experts and on the MLP of a layer without (%.200q), which PEFT reads wrong, without an error: use --names tinker", mixed)
	}
	parts = map[string]expertPart{}
	for name, t := range tensors {
		p := expertName.FindStringSubmatch(name)
		if p == nil {
			parts[name] = expertPart{entry{t.dtype, t.shape, [2]int64{0, t.size}}, t.offset}
			continue
		}
		if t.shape[0] != 1 && t.shape[0] != experts {
			return nil, 0, fmt.Errorf("%s: tensor %.200q has shape %v, others are of %d experts", plugins.AdapterWeightsFile, name, t.shape, experts)
		}
		each := t.size / t.shape[0]
		for e := range experts {
			own := fmt.Sprintf("%s%d.%s%s", p[1], e, expertKinds[p[2]], p[3])
			parts[own] = expertPart{entry{t.dtype, t.shape[1:], [2]int64{0, each}}, t.offset + min(e, t.shape[0]-1)*each}
		}
	}
	return parts, experts, nil
}

// separateTargets renames the kinds of modules in an adapter's configuration.
func separateTargets(path string, experts int64, leaves bool) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var options map[string]json.RawMessage
	var c struct {
		Targets []string           `json:"target_modules"`
		Alphas  map[string]float64 `json:"alpha_pattern"`
	}
	if err := errors.Join(json.Unmarshal(text, &options), json.Unmarshal(text, &c)); err != nil {
		return fmt.Errorf("%s: %w", plugins.AdapterConfigFile, err)
	}
	targets := []string{}
	for _, name := range c.Targets {
		if kind, ok := expertKinds[name]; ok {
			name = kind
		}
		if !slices.Contains(targets, name) {
			targets = append(targets, name)
		}
	}
	if options["target_modules"], err = json.Marshal(targets); err != nil {
		return err
	}
	if len(c.Alphas) > 0 { // each key is a module's whole name
		alphas := map[string]float64{}
		for name, alpha := range c.Alphas {
			at := strings.LastIndexByte(name, '.') + 1
			kind, ok := expertKinds[name[at:]]
			switch {
			case !ok:
				alphas[name] = alpha
			case leaves:
				alphas[name[:at]+"[0-9]+."+kind] = alpha
			default:
				for e := range experts {
					alphas[fmt.Sprintf("%s%d.%s", name[:at], e, kind)] = alpha
				}
			}
		}
		if options["alpha_pattern"], err = json.Marshal(alphas); err != nil {
			return err
		}
	}
	if text, err = json.MarshalIndent(options, "", "  "); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}
