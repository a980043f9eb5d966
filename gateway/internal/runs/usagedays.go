package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// DayUse is what one owner has used of one model on one day (UTC).
type DayUse struct {
	Day   time.Time
	Owner string
	Model string // the served model's name; one that is not served any more has the name that it was used by

	Trained     int64 // tokens of forward_backward and forward passes
	Sampled     int64 // tokens
	Prompt      int64 // tokens of prompts, those that were found in the cache among them
	Cached      int64
	Steps       int64 // optimizer steps
	Requests    int64 // operations, sampling requests and direct requests that were finished
	Checkpoints int64 // that were written
}

// UsageByDay sums what owners have used since a day, by day, owner and model, the newest day first. No owners: all. KindInvalid where that has more rows than one answer.
func (c *Core) UsageByDay(ctx context.Context, owners []string, since time.Time) ([]DayUse, error) {
	if owners == nil {
		var err error
		if owners, err = c.usageOwners(ctx); err != nil {
			return nil, fmt.Errorf("list usage: %w", err)
		}
	}
	type of struct {
		day          int64
		owner, model string
	}
	sums := map[of]*DayUse{}
	since = since.UTC().Truncate(24 * time.Hour)
	span := store.Range{From: since.Unix(), To: c.cfg.now().Add(48 * time.Hour).Unix()}
	for _, owner := range owners {
		for _, collection := range []string{inUsageDays, inUsage} {
			query := store.PageQuery{Range: span, Limit: 1000}
			for more := true; more; {
				var page []store.Record
				var err error
				if page, more, err = c.cfg.Store.Page(ctx, collection, owner, query); err != nil {
					return nil, fmt.Errorf("list usage: %w", err)
				}
				for _, r := range page {
					query.After = &store.Place{Rank: r.Rank, Key: r.Key}
					var u usageRecord
					if err := json.Unmarshal(r.Value, &u); err != nil {
						return nil, fmt.Errorf("read usage: %w", err)
					}
					if m := c.byName[u.BaseModel]; m != nil {
						u.BaseModel = m.Name
					}
					day := time.Unix(r.Rank, 0).UTC().Truncate(24 * time.Hour)
					k := of{day.Unix(), owner, u.BaseModel}
					if u.Type == UsageStorageByteSecs {
						continue // nobody did anything
					}
					if sums[k] == nil {
						if len(sums) == maxUsageEvents {
							return nil, invalidf("days: there are more than %d days, keys and models in them; ask for fewer days", maxUsageEvents)
						}
						sums[k] = &DayUse{Day: day, Owner: owner, Model: u.BaseModel}
					}
					sums[k].add(u.Type, r.Count)
				}
			}
		}
	}
	list := make([]DayUse, 0, len(sums))
	for _, u := range sums {
		list = append(list, *u)
	}
	slices.SortFunc(list, func(a, b DayUse) int {
		return cmp.Or(b.Day.Compare(a.Day), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Model, b.Model))
	})
	return list, nil
}

func (u *DayUse) add(kind UsageType, count int64) {
	switch kind {
	case UsageTraining:
		u.Trained += count
	case UsageSample:
		u.Sampled += count
	case UsagePrefill:
		u.Prompt += count
	case UsagePrefillCached:
		u.Prompt += count
		u.Cached += count
	case UsageStep:
		u.Steps += count
	case UsageRequest:
		u.Requests += count
	case UsageCheckpoint:
		u.Checkpoints += count
	}
}

// usageOwners lists who has used anything.
func (c *Core) usageOwners(ctx context.Context) ([]string, error) {
	var owners []string
	for _, collection := range []string{inUsageDays, inUsage} {
		for after := ""; ; {
			page, err := c.cfg.Store.Parents(ctx, collection, after, 1000)
			if err != nil {
				return nil, err
			}
			owners = append(owners, page...)
			if len(page) < 1000 {
				break
			}
			after = page[len(page)-1]
		}
	}
	slices.Sort(owners)
	return slices.Compact(owners), nil
}

// Use is what an owner has at the moment, beside the limits.
type Use struct {
	Runs            int
	Samples         int   // sampling requests that are not finished
	CheckpointBytes int64 // of files
	MetricValues    int64 // of clients' own, that are kept with runs
	// Trained and Sampled are the tokens that count against the limits per minute; 0 where there is no limit.
	Trained, Sampled int64
	Limits           Limits
	Weight           float64 // share of the server while others have work
}

// Use tells what an owner has at the moment.
func (c *Core) Use(owner string) Use {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := Use{Runs: c.liveRuns(owner), Samples: c.samplesOf(owner), CheckpointBytes: c.lists.bytes[owner], MetricValues: c.metricValues[owner], Limits: c.limited.of(owner), Weight: c.share(owner).Weight}
	for kind, tokens := range map[pace]*int64{paceTrained: &u.Trained, paceSampled: &u.Sampled} {
		if m := c.metered(owner, kind); m != nil {
			*tokens = int64(m.level)
		}
	}
	return u
}
