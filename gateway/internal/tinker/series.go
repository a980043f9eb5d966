package tinker

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/sse"
)

// viewer is who asks for series: an administrator may see everybody's.
func (s *Service) viewer(c call) runs.Viewer {
	return runs.Viewer{Owner: c.owner, Everyone: !s.auth.Ring.Required() || s.auth.Admin(keys.Credential(c.Request.Header))}
}

// overviews lists runs that are live or were, newest first.
func (s *Service) overviews(c call) (any, error) {
	p, err := page(c, 100)
	if err != nil {
		return nil, err
	}
	v, everyone := s.viewer(c), false
	switch owners := c.Query("owners"); owners {
	case "", "me":
	case "all":
		if everyone = true; !v.Everyone {
			return nil, &refusal{http.StatusForbidden, "owners: all is for administrators' keys"}
		}
	default:
		return nil, badRequestf("owners: %.40q is not one of me, all", owners)
	}
	list, total, err := s.core.Overviews(c, v, runs.OverviewQuery{Everyone: everyone, Page: p})
	if err != nil {
		return nil, err
	}
	out := make([]gin.H, len(list))
	for i, o := range list {
		out[i] = overviewOf(c, o)
	}
	return gin.H{"runs": out, "cursor": cursor{p.Offset, p.Limit, total}}, nil
}

// overview describes one run.
func (s *Service) overview(c call) (any, error) {
	o, err := s.core.Overview(c, s.viewer(c), c.Param("run"))
	if err != nil {
		return nil, err
	}
	return overviewOf(c, o), nil
}

func overviewOf(c call, o runs.RunOverview) gin.H {
	series := make([]gin.H, len(o.Series))
	for i, x := range o.Series {
		series[i] = gin.H{"name": x.Name, "source": sourceOf(x.Client), "step": x.Step, "value": finite(x.Value), "thinned": x.Thinned}
		if !x.Time.IsZero() {
			series[i]["time"] = x.Time
		}
	}
	out := gin.H{
		"run_id": o.ID, "session_id": o.SessionID, "owner": o.Owner, "base_model": o.BaseModel, "rank": o.LoRA.Rank, "live": o.Live, "state": o.State, "reason": keys.TellFault(c.Request.Context(), o.Reason),
		"created_at": o.CreatedAt, "last_request_time": o.LastRequest, "inexact": o.Inexact, "backend": o.Backend, "moves": o.Moves, "user_metadata": o.UserMetadata, "series": series,
		"queued": o.Queued, "unread_inputs": o.UnreadInputs, "rebuilding": rebuildingOf(c, o.Rebuilding),
	}
	addNaming(out, o.Naming)
	for name, cp := range map[string]*runs.CheckpointInfo{"last_checkpoint": o.LastCheckpoint, "last_sampler_checkpoint": o.LastSampler} {
		if cp != nil {
			out[name] = checkpoint(*cp)
		}
	}
	return out
}

// rebuildingOf tells how far a run is on its way into a process; nil when it is there.
func rebuildingOf(c call, b *runs.Rebuilding) any {
	if b == nil {
		return nil
	}
	return gin.H{"operations_replayed": b.Replayed, "operations_to_replay": b.ToReplay, "reason": keys.TellFault(c.Request.Context(), b.Trouble)}
}

// addNaming adds what people call a run.
func addNaming(to gin.H, n runs.Naming) {
	to["display_name"], to["recipe"] = n.DisplayName, n.Recipe
	if n.SessionMetadata != nil {
		to["session_metadata"] = n.SessionMetadata
	}
}

func sourceOf(client bool) string {
	if client {
		return "client"
	}
	return "server"
}

// series gives the points of some series of a run.
func (s *Service) series(c call) (any, error) {
	q := runs.CurveQuery{Names: c.QueryArray("name")}
	for _, list := range c.QueryArray("names") {
		q.Names = append(q.Names, strings.Split(list, ",")...)
	}
	if len(q.Names) == 0 {
		q.Names = nil
	}
	var err error
	if q.Points, err = number(c, "points", 1000, 3, 10_000); err != nil {
		return nil, err
	}
	from, err := number(c, "from", 0, 0, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	q.From = int64(from)
	found, err := s.core.Curves(c, s.viewer(c), c.Param("run"), q)
	if err != nil {
		return nil, err
	}
	out := make([]gin.H, len(found))
	for i, x := range found {
		out[i] = gin.H{
			"name": x.Name, "source": sourceOf(x.Client), "steps": ints(x.Steps), "times": ints(x.Times), "values": finites(x.Values), "thinned": x.Thinned, "drawn": x.Drawn,
		}
	}
	return gin.H{"run_id": c.Param("run"), "series": out}, nil
}

// cycles tells what the clock cycles of a run's newest operations were like.
func (s *Service) cycles(c call) (any, error) {
	operations, err := number(c, "operations", 200, 1, runs.MaxTimeline)
	if err != nil {
		return nil, err
	}
	found, err := s.core.Timeline(c, s.viewer(c), c.Param("run"), operations)
	if err != nil {
		return nil, err
	}
	out := make([]gin.H, len(found))
	for i, x := range found {
		list := make([]gin.H, len(x.Operations))
		for j, o := range x.Operations {
			list[j] = gin.H{"seq_id": o.Seq, "kind": o.Kind, "begin": o.Begin, "end": o.End, "queue_seconds": o.Queued.Seconds(), "tokens": o.Tokens, "failed": o.Failed}
		}
		out[i] = gin.H{"cycle": x.Cycle, "begin": x.Begin, "end": x.End, "sampling_turns": x.SamplingTurns, "sampling_seconds": x.Sampling.Seconds(), "operations": list}
	}
	return gin.H{"run_id": c.Param("run"), "cycles": out}, nil
}

func ints(list []int64) []int64 {
	if list == nil {
		return []int64{}
	}
	return list
}

// finites has null for what is no number.
func finites(values []float64) []*float64 {
	out := make([]*float64, len(values))
	for i, v := range values {
		out[i] = finite(v)
	}
	return out
}

// pointsOf describes rows of a run.
func pointsOf(points []runs.Point) gin.H {
	list := make([]gin.H, len(points))
	for i, p := range points {
		values := make(map[string]*float64, len(p.Row.Values))
		for _, x := range p.Row.Values {
			values[x.Name] = finite(x.Number)
		}
		list[i] = gin.H{"source": sourceOf(p.Client), "step": p.Row.Step, "time": p.Row.Time, "values": values}
	}
	return gin.H{"points": list}
}

// seriesEvents streams the points of a run as they come.
func (s *Service) seriesEvents(c call) (any, error) {
	from, err := number(c, "from", 0, 0, math.MaxInt32)
	if err != nil {
		return nil, err
	}
	v := s.viewer(c)
	if _, err := s.core.Overview(c, v, c.Param("run")); err != nil {
		return nil, err
	}
	return stream(func(c call) error {
		out := sse.New(c.Context, sse.Comment)
		defer out.Close()
		out.Accept()
		err := s.core.Watch(c.request, v, c.Param("run"), int64(from), func(points []runs.Point) error {
			return out.Send("points", pointsOf(points))
		})
		return out.End(err, func(err error) error {
			if err != nil {
				return out.Send("error", gin.H{"detail": keys.TellFault(c.request, err.Error())})
			}
			return out.Send("end", gin.H{"run_id": c.Param("run")})
		})
	}), nil
}

// metric is a number that JSON may have no word for.
type metric float64

// UnmarshalJSON takes a number, null for one that is none, and the words that programs write in its place.
func (m *metric) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "null", `"NaN"`:
		*m = metric(math.NaN())
		return nil
	case `"Infinity"`:
		*m = metric(math.Inf(1))
		return nil
	case `"-Infinity"`:
		*m = metric(math.Inf(-1))
		return nil
	}
	return json.Unmarshal(b, (*float64)(m))
}

// addMetrics keeps a client's own numbers with a run.
func (s *Service) addMetrics(c call) (any, error) {
	var in struct {
		Rows []struct {
			Step   *int64             `json:"step"`
			Values map[string]*metric `json:"values"`
		} `json:"rows"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if len(in.Rows) > runs.MaxMetricRows {
		return nil, badRequestf("rows: has %d entries, at most %d are allowed", len(in.Rows), runs.MaxMetricRows)
	}
	rows := make([]runs.MetricRow, len(in.Rows))
	for i, r := range in.Rows {
		if r.Step == nil {
			return nil, badRequestf("rows[%d].step: is required", i)
		}
		rows[i] = runs.MetricRow{Step: *r.Step, Values: make(map[string]float64, len(r.Values))}
		for name, v := range r.Values {
			if v == nil { // encoding/json does not ask for null
				rows[i].Values[name] = math.NaN()
			} else {
				rows[i].Values[name] = float64(*v)
			}
		}
	}
	passedOver, err := s.core.AddMetrics(c, c.owner, c.Param("run"), rows)
	if err != nil {
		return nil, err
	}
	return gin.H{"rows": len(rows), "values_passed_over": passedOver}, nil
}
