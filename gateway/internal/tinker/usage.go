package tinker

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// Nothing is billed here: the fields for costs are left out, the counts are real.

func (s *Service) usageEvents(c call) (any, error) {
	from, err := hour(c, "starting_on")
	if err != nil {
		return nil, err
	}
	to, err := hour(c, "ending_before")
	if err != nil {
		return nil, err
	}
	if !from.Before(to) || to.Sub(from) > 14*24*time.Hour {
		return nil, badRequestf("ending_before: must be after starting_on, by at most 14 days")
	}
	events, metadata, err := s.core.Usage(c, c.owner, from, to)
	if err != nil {
		return nil, err
	}
	data := make([]gin.H, len(events))
	for i, e := range events {
		data[i] = gin.H{"bucket_start": e.Start, "bucket_end": e.End, "event_info": usageInfo(e)}
		for name, value := range map[string]string{"base_model": e.BaseModel, "user_id": e.Owner, "user_name": e.Owner, "session_id": e.SessionID, "project_id": e.ProjectID} {
			if value != "" {
				data[i][name] = value
			}
		}
	}
	sessions := make(map[string]gin.H, len(metadata))
	for id, raw := range metadata {
		sessions[id] = gin.H{"user_metadata": texts(raw)}
	}
	return gin.H{"data": data, "sessions": sessions}, nil
}

// usageInfo holds exactly the keys of its type: older SDKs allow no others.
func usageInfo(e runs.UsageEvent) gin.H {
	switch e.Type {
	case runs.UsageTraining, runs.UsageSample:
		return gin.H{"type": string(e.Type), "token_count": e.Count}
	case runs.UsagePrefill:
		return gin.H{"type": "sampling_prefill", "cached": false, "token_count": e.Count}
	case runs.UsagePrefillCached:
		return gin.H{"type": "sampling_prefill", "cached": true, "token_count": e.Count}
	case runs.UsageCheckpoint:
		return gin.H{"type": "checkpoint", "count": e.Count}
	}
	return gin.H{"type": "storage", "gigabyte_hours": float64(e.Count) / 1e9 / 3600}
}

func hour(c call, name string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, c.Query(name))
	if err != nil {
		return t, badRequestf("%s: %.60q is not an RFC 3339 time", name, c.Query(name))
	}
	if !t.Equal(t.Truncate(time.Hour)) {
		return t, badRequestf("%s: %s is not the beginning of an hour", name, c.Query(name))
	}
	return t, nil
}

func (s *Service) checkpointStorage(c call) (any, error) {
	usage, err := s.core.StorageUsage(c, c.owner, c.Query("project_id"))
	if err != nil {
		return nil, err
	}
	data := make([]gin.H, len(usage))
	for i, u := range usage {
		data[i] = gin.H{"checkpoint_count": u.Checkpoints, "size_bytes": u.Bytes, "size_gigabytes": float64(u.Bytes) / 1e9, "user_name": c.owner}
		if u.ProjectID != "" {
			data[i]["project_id"] = u.ProjectID
		}
	}
	return gin.H{"data": data}, nil
}
