package cmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/backup"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// recovery is what the command is asked for.
type recovery struct {
	data          *dataFlags
	accept, json  bool
	claim         []string
	discard       []string
	owner         string
	claimEachItem bool // "all"
}

// recoveryReport is what it found and did.
type recoveryReport struct {
	DataDir    string         `json:"data_dir"`
	Lost       string         `json:"lost,omitempty"` // why the store cannot be opened, or could not before it was accepted
	Findings   []string       `json:"findings"`       // what is missing or damaged in the store, each
	Opened     bool           `json:"opened"`         // the store could be opened: else it is not known what has a record
	Claimed    []runs.Claimed `json:"claimed"`
	NotClaimed []notClaimed   `json:"not_claimed"`
	Discarded  []discarded    `json:"discarded"`
	Items      []runs.Item    `json:"items"`   // without a record, after what was done
	Missing    []runs.Missing `json:"missing"` // records without files
}

type notClaimed struct {
	Item  string `json:"item"`
	Whole bool   `json:"whole"`
	Why   string `json:"why"`
}

type discarded struct {
	Item  string `json:"item"`
	Bytes int64  `json:"bytes"`
}

func recoverCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "recover --config FILE",
		Short: "List what a server's records and files lack of each other, and bring it back",
		Long: `Lists, for a server that does not run: what its store has lost, files that no record names, and records without files.
Files without records are never deleted by themselves: at the start of the server they go to DATA_DIR/unclaimed.

  --accept          goes on with what is left of the store
  --claim all       makes the records of all checkpoints whose files are whole, and of the newest states of runs that have no records
  --claim PATH …    makes the record of what is listed at PATH
  --discard PATH …  deletes what is listed at PATH in unclaimed, for good`,
	}
	r := &recovery{data: addDataFlags(c)}
	c.Flags().BoolVar(&r.accept, "accept", false, "take the store as it is, although something is missing in it, or start an empty one if it is missing as a whole")
	c.Flags().StringArrayVar(&r.claim, "claim", nil, "what gets a record: all, or a path that is listed; may come several times")
	c.Flags().StringArrayVar(&r.discard, "discard", nil, "what is deleted: a path that is listed; may come several times")
	c.Flags().StringVar(&r.owner, "owner", "", "whose is what does not say itself whose it is: the name of a key")
	c.Flags().BoolVar(&r.json, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
		case r.claim != nil && r.discard == nil:
			r.claim = append(r.claim, args...)
		case r.discard != nil && r.claim == nil:
			r.discard = append(r.discard, args...)
		default:
			return fmt.Errorf("%s: say with --claim or --discard what is to become of it", args[0])
		}
		r.claimEachItem = slices.Contains(r.claim, "all")
		return r.run(c.Context(), c.OutOrStdout())
	}
	return c
}

func (r *recovery) run(ctx context.Context, out io.Writer) (err error) {
	cfg, err := r.data.existing()
	if err != nil {
		return err
	}
	if backup.Unfinished(cfg.DataDir) {
		return unfinishedRestore(cfg.DataDir)
	}
	report := &recoveryReport{DataDir: cfg.DataDir, Findings: []string{}, Claimed: []runs.Claimed{}, NotClaimed: []notClaimed{}, Discarded: []discarded{}}
	records, err := openOffline(ctx, cfg, false)
	var loss *store.Loss
	if errors.As(err, &loss) {
		report.Lost = loss.Kind.Error()
		for _, f := range loss.Findings {
			report.Findings = append(report.Findings, f.String())
		}
		err = nil
	}
	if err == nil && r.accept {
		if records != nil { // rows that are damaged keep nobody from opening it
			for _, f := range records.Damage() {
				report.Findings = append(report.Findings, f.String())
			}
			if err = records.Close(); err != nil {
				return err
			}
		}
		records, err = openOffline(ctx, cfg, true)
	}
	if err != nil {
		return err
	}
	if records != nil {
		report.Opened = true
		defer func() { err = errors.Join(err, records.Close()) }()
	}
	if cfg.Files.S3 == nil {
		inventory, err := runs.OpenInventory(ctx, records, cfg.FilesDir())
		if err != nil {
			return err
		}
		if err := r.act(ctx, inventory, report); err != nil {
			return err
		}
	} else if len(r.claim)+len(r.discard) > 0 || r.claimEachItem {
		return errors.New("--claim and --discard: not with files.s3: what a bucket has and no record names is not listed by this command")
	}
	if records != nil {
		for _, f := range records.Damage() {
			report.Findings = append(report.Findings, f.String())
		}
	}
	if r.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(report)
	} else {
		err = report.write(out)
	}
	if err != nil {
		return err
	}
	return r.verdict(report)
}

// act claims and discards, and lists what is there then.
func (r *recovery) act(ctx context.Context, inventory *runs.Inventory, report *recoveryReport) error {
	if len(r.claim) > 0 && !report.Opened {
		return fmt.Errorf("%s; say --accept to go on with what is left, then it can be claimed: %s", report.Lost, strings.Join(report.Findings, "; "))
	}
	items, err := inventory.Items(ctx)
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for _, item := range items {
		listed[item.Path] = true
	}
	for _, list := range [][]string{r.claim, r.discard} {
		for i, path := range list {
			if list[i] = filepath.Clean(path); path != "all" && !listed[list[i]] {
				return fmt.Errorf("%s: there is no such thing in the list; nothing was done", path)
			}
		}
	}
	for _, item := range items {
		named := slices.Contains(r.claim, item.Path)
		if !named && (!r.claimEachItem || !inventory.OfUse(item)) {
			continue
		}
		claimed, err := inventory.Claim(ctx, item, r.owner)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			report.NotClaimed = append(report.NotClaimed, notClaimed{Item: item.Path, Whole: item.Whole, Why: cmp.Or(item.Fault, err.Error())})
			continue
		}
		report.Claimed = append(report.Claimed, claimed)
	}
	for _, path := range r.discard {
		bytes, err := inventory.Discard(path)
		if err != nil {
			return err
		}
		report.Discarded = append(report.Discarded, discarded{Item: path, Bytes: bytes})
	}
	report.Items = items
	if len(report.Claimed)+len(report.Discarded) > 0 {
		if report.Items, err = inventory.Items(ctx); err != nil {
			return err
		}
	}
	report.Missing, err = inventory.Missing(ctx)
	return err
}

// verdict is an error when something was asked for that was not done, or has to be decided.
func (r *recovery) verdict(report *recoveryReport) error {
	failed := 0
	for _, n := range report.NotClaimed {
		if n.Whole || slices.Contains(r.claim, n.Item) {
			failed++
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d could not be claimed", failed)
	case !report.Opened:
		return fmt.Errorf("%s; bring back what is missing, restore a backup, or go on with what is left: --accept, with --claim all for what has no records then", report.Lost)
	}
	return nil
}

// write prints the report for people.
func (r *recoveryReport) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	section := func(n int, format string, args ...any) bool {
		if n > 0 {
			fmt.Fprintf(w, format+"\n", args...)
		}
		return n > 0
	}
	fmt.Fprintf(w, "data directory %s\n", r.DataDir)
	if r.Lost != "" {
		state := "not accepted"
		if r.Opened {
			state = "accepted"
		}
		fmt.Fprintf(w, "\n%s (%s)\n", r.Lost, state)
	}
	if section(len(r.Findings), "\nmissing or damaged in the store:") {
		for _, f := range r.Findings {
			fmt.Fprintf(w, "  %s\n", f)
		}
	}
	if section(len(r.Claimed), "\nclaimed:") {
		for _, c := range r.Claimed {
			fmt.Fprintf(w, "  %s\tof %s\tfrom %s\t%s\n", c.Checkpoint, ownerName(c.Owner), c.Item, c.Note)
		}
	}
	if section(len(r.NotClaimed), "\nnot claimed:") {
		for _, n := range r.NotClaimed {
			fmt.Fprintf(w, "  %s\t%s\n", n.Item, n.Why)
		}
	}
	if section(len(r.Discarded), "\ndeleted:") {
		for _, d := range r.Discarded {
			fmt.Fprintf(w, "  %s\t%s\n", d.Item, size(d.Bytes))
		}
	}
	what := "without a record"
	if !r.Opened {
		what = "of which it is not known whether they have a record"
	}
	if section(len(r.Items), "\nfiles %s:", what) {
		for _, i := range r.Items {
			state := "whole"
			if !i.Whole {
				state = "damaged"
			}
			of := ""
			if i.Checkpoint != "" {
				of = fmt.Sprintf("%s of %s, %s, step %d", i.Checkpoint, ownerName(i.Owner), i.BaseModel, i.Step)
			}
			why := ""
			if i.Why != "" {
				why = i.When.Format("2006-01-02 15:04") + ": " + i.Why
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", i.Path, i.What, size(i.Bytes), state, strings.Join(slices.DeleteFunc([]string{i.Fault, of, why}, func(s string) bool { return s == "" }), "; "))
		}
	}
	if section(len(r.Missing), "\nrecords whose files are missing or damaged:") {
		for _, m := range r.Missing {
			fmt.Fprintf(w, "  %s\t%s\t%s\n", m.Name, m.Path, m.Fault)
		}
	}
	if len(r.Items)+len(r.Missing)+len(r.Findings) == 0 {
		fmt.Fprintln(w, "every file has its record, and every record its files")
	}
	return w.Flush()
}

func ownerName(owner string) string { return cmp.Or(owner, "nobody by name") }

// size is a number of bytes for people.
func size(bytes int64) string {
	switch {
	case bytes >= 1<<40:
		return fmt.Sprintf("%.1f TiB", float64(bytes)/(1<<40))
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
}
