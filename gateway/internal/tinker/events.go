package tinker

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/sse"
)

// A stream of events tells that something has changed no more often than every leastPause, and not while it has made events for more than a share of the
// time: then it waits longer, up to longestPause.
const (
	leastPause   = 250 * time.Millisecond
	pauseFor     = 4 // times as long as the events took
	longestPause = 5 * time.Second
)

// events streams what changes for the caller, in place of asking for lists again and again.
func (s *Service) events(c call) (any, error) {
	v := s.viewer(c)
	t, err := topics(c, v)
	if err != nil {
		return nil, err
	}
	l, err := s.core.Listen(c, v, t)
	if err != nil {
		return nil, err
	}
	return stream(func(c call) error {
		defer l.Close()
		out := sse.New(c.Context, sse.Comment)
		defer out.Close()
		// Everything that changes from here on is told: whoever reads the lists now, and follows the events, misses nothing.
		err := out.Send("begin", gin.H{})
		if err == nil {
			err = s.tellNews(c, l, out)
		}
		return out.End(err, func(err error) error {
			return out.Send("error", gin.H{"detail": keys.TellFault(c.request, err.Error())})
		})
	}), nil
}

// topics reads what a caller wants to be told of.
func topics(c call, v runs.Viewer) (t runs.Topics, err error) {
	switch owners := c.Query("runs"); owners {
	case "":
	case "me":
		t.Runs = true
	case "all":
		if t.Runs, t.Everyone = true, true; !v.Everyone {
			return t, &refusal{http.StatusForbidden, "runs: all is for administrators' keys"}
		}
	default:
		return t, badRequestf("runs: %.40q is not one of me, all", owners)
	}
	t.Run = c.Query("run")
	for name, on := range map[string]*bool{"usage": &t.Usage, "devices": &t.Devices} {
		switch text := c.Query(name); text {
		case "", "false":
		case "true":
			*on = true
		default:
			return t, badRequestf("%s: %.40q is not one of true, false", name, text)
		}
	}
	if t == (runs.Topics{}) {
		return t, badRequestf("events: name what is to be told of: runs (me, all), run (an id), usage (true), devices (true)")
	}
	return t, nil
}

// tellNews sends events until the caller goes, the server stops, or something fails.
func (s *Service) tellNews(c call, l *runs.Listener, out *sse.Stream) error {
	for {
		news, err := l.Next(c)
		if err != nil {
			return err
		}
		begun := time.Now()
		if err := s.tell(c, l, news, out); err != nil {
			return err
		}
		if err := l.Rest(c, min(max(leastPause, pauseFor*time.Since(begun)), longestPause)); err != nil {
			return err
		}
	}
}

// tell sends the events of some news.
func (s *Service) tell(c call, l *runs.Listener, news runs.News, out *sse.Stream) error {
	if len(news.Runs) > 0 {
		changed, points, err := s.changed(c, l, news.Runs)
		if err != nil {
			return err
		}
		if err := out.Send("runs", changed); err != nil {
			return err
		}
		if len(points) > 0 {
			if err := out.Send("points", pointsOf(points)); err != nil {
				return err
			}
		}
	}
	for _, e := range []struct {
		name string
		on   bool
	}{{"more", news.More}, {"checkpoints", news.Checkpoints}, {"operations", news.Operations}, {"usage", news.Usage}, {"devices", news.Devices}} {
		if e.on {
			if err := out.Send(e.name, gin.H{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// changed describes runs that have changed, and gives the new points of the one that is watched. It takes its turn with the caller's lists.
func (s *Service) changed(c call, l *runs.Listener, ids []string) (gin.H, []runs.Point, error) {
	done, err := s.core.AwaitList(c, c.owner)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	list, gone, err := l.Overviews(c, ids)
	if err != nil {
		return nil, nil, err
	}
	out := make([]gin.H, len(list))
	for i, o := range list {
		out[i] = overviewOf(c, o)
	}
	if gone == nil {
		gone = []string{}
	}
	var points []runs.Point
	if l.Watches(ids) && !l.Watches(gone) {
		if points, err = l.Points(c); err != nil {
			return nil, nil, err
		}
	}
	return gin.H{"runs": out, "gone": gone}, points, nil
}
