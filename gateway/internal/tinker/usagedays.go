package tinker

import (
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// maxUsageDays is how many days one answer may go back.
const maxUsageDays = 366

// usageByDay tells what was used by day and model, and what there is at the moment beside the limits: of the caller's own name, to an administrator of every name.
func (s *Service) usageByDay(c call) (any, error) {
	back, err := number(c, "days", 30, 1, maxUsageDays)
	if err != nil {
		return nil, err
	}
	owners := []string{c.owner}
	if c.admin {
		owners = nil
	}
	since := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-back)
	used, err := s.core.UsageByDay(c, owners, since)
	if err != nil {
		return nil, err
	}
	names := []string{c.owner}
	days := make([]gin.H, len(used))
	for i, u := range used {
		names = append(names, u.Owner)
		days[i] = gin.H{
			"date": u.Day.Format(time.DateOnly), "key": u.Owner, "model": u.Model, "trained_tokens": u.Trained, "sampled_tokens": u.Sampled, "prompt_tokens": u.Prompt, "cached_tokens": u.Cached,
			"steps": u.Steps, "requests": u.Requests, "checkpoints": u.Checkpoints,
		}
	}
	keys := s.keysByName(c)
	if c.admin {
		for name := range keys {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	now := []gin.H{}
	for _, name := range slices.Compact(names) {
		one := useNow(s.core.Use(name))
		one["key"], one["keys"] = name, list(keys[name])
		now = append(now, one)
	}
	return gin.H{"since": since.Format(time.DateOnly), "days": days, "now": now}, nil
}

// keysByName describes the keys that the caller may know of: the own, and all for an administrator.
func (s *Service) keysByName(c call) map[string][]gin.H {
	out := map[string][]gin.H{}
	for _, e := range s.auth.Ring.Entries() {
		if e.Name != c.owner && !c.admin {
			continue
		}
		key := gin.H{"id": e.ID, "admin": e.Admin, "expires": nil}
		if !e.Expires.IsZero() {
			key["expires"] = e.Expires.UTC()
		}
		out[e.Name] = append(out[e.Name], key)
	}
	return out
}

func useNow(u runs.Use) gin.H {
	limit := func(n int64) any {
		if n == 0 {
			return nil
		}
		return n
	}
	return gin.H{
		"runs": u.Runs, "samples": u.Samples, "trained_tokens_of_this_minute": u.Trained, "sampled_tokens_of_this_minute": u.Sampled, "checkpoint_bytes": u.CheckpointBytes, "metric_values": u.MetricValues, "weight": u.Weight,
		"limits": gin.H{
			"runs": limit(int64(u.Limits.Runs)), "samples": limit(int64(u.Limits.Samples)), "trained_tokens_per_minute": limit(u.Limits.TrainedPerMinute), "sampled_tokens_per_minute": limit(u.Limits.SampledPerMinute),
			"checkpoint_bytes": limit(u.Limits.CheckpointBytes), "metric_values": limit(u.Limits.MetricValues),
		},
	}
}
