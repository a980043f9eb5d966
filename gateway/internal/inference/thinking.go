package inference

import (
	"encoding/json"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// Thinking is what a request says about the model's thoughts.
type Thinking struct {
	// Effort is one of [Efforts], "" where nothing is said; EffortField is the request's field that said it.
	Effort, EffortField string
	// Enabled switches thoughts on or off; EnabledField is the request's field.
	Enabled      *bool
	EnabledField string
	// Budget bounds the thoughts' tokens; BudgetField is the request's field.
	Budget      *int
	BudgetField string
	// Lenient takes a wish that the template has no setting for without a word: for surfaces whose clients always send one.
	Lenient bool
	// Hidden thoughts are made and counted and not given out. Raw ones stay in the content with their tags.
	Hidden, Raw bool
}

// maxBudget is more tokens than any model can think.
const maxBudget = 1 << 24

func (t *Thinking) check() error {
	if t.Budget != nil && (*t.Budget < 0 || *t.Budget > maxBudget) {
		return Invalid(t.BudgetField, "%d is not between 0 and %d", *t.Budget, maxBudget)
	}
	return nil
}

// Efforts are the degrees of reasoning effort, least first.
var Efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// thinkingVariable finds a template's variable of the name thinking, which is no key of a message.
var thinkingVariable = regexp.MustCompile(`\bthinking is (not )?defined|\b(if|and|or|not|elif) \(?thinking\b|= *thinking\b`)

// switchOf is the variable by which a template is told to think or not; "" where it has none.
func switchOf(source string) string {
	switch {
	case strings.Contains(source, "enable_thinking"):
		return "enable_thinking"
	case thinkingVariable.MatchString(source):
		return "thinking"
	}
	return ""
}

// TemplateKwargs are the variables that a request adds for the template: those that it names, and what thinking comes to. What the template does not read is refused, not dropped.
func TemplateKwargs(m *catalog.Model, named map[string]json.RawMessage, thinking Thinking) (*jinja.Dict, error) {
	if len(named) == 0 && thinking.Effort == "" && thinking.Enabled == nil || m.Tokenizer == nil {
		return nil, nil
	}
	source := m.Tokenizer.ChatTemplate()
	out := &jinja.Dict{}
	names := make([]string, 0, len(named))
	for name := range named {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if !strings.Contains(source, name) {
			return nil, Invalid("chat_template_kwargs."+name, "the model's chat template does not use it")
		}
		value, err := jinja.FromJSON(named[name])
		if err != nil {
			return nil, Invalid("chat_template_kwargs."+name, "%v", err)
		}
		out.Set(name, value)
	}
	if err := thinking.effort(m, source, out); err != nil {
		return nil, err
	}
	if err := thinking.enabled(m, source, out); err != nil {
		return nil, err
	}
	return out, nil
}

// effort sets what the effort comes to. What the request names itself stays.
func (t *Thinking) effort(m *catalog.Model, source string, out *jinja.Dict) error {
	if t.Effort == "" {
		return nil
	}
	if !slices.Contains(Efforts, t.Effort) {
		return Invalid(t.EffortField, "%.40q is not one of %s", t.Effort, strings.Join(Efforts, ", "))
	}
	if strings.Contains(source, "reasoning_effort") {
		effort := t.Effort
		if effort == "max" && !strings.Contains(source, "'max'") && !strings.Contains(source, `"max"`) {
			effort = "xhigh"
		}
		setDefault(out, "reasoning_effort", jinja.Str(effort))
		return nil
	}
	return t.turn(m, source, out, t.Effort != "none" && t.Effort != "minimal", t.EffortField)
}

func (t *Thinking) enabled(m *catalog.Model, source string, out *jinja.Dict) error {
	if t.Enabled == nil {
		return nil
	}
	if switchOf(source) == "" && strings.Contains(source, "reasoning_effort") {
		if !*t.Enabled {
			setDefault(out, "reasoning_effort", jinja.Str("none"))
		}
		return nil
	}
	return t.turn(m, source, out, *t.Enabled, t.EnabledField)
}

// turn switches thoughts on or off.
func (t *Thinking) turn(m *catalog.Model, source string, out *jinja.Dict, on bool, field string) error {
	if name := switchOf(source); name != "" {
		setDefault(out, name, jinja.Bool(on))
		return nil
	}
	if t.Lenient || !on && m.Reasoning.Open == "" { // nothing to switch off
		return nil
	}
	return Unsupported(field, "the model's chat template has no setting for it")
}

func setDefault(d *jinja.Dict, name string, value jinja.Value) {
	if _, given := d.Get(name); !given {
		d.Set(name, value)
	}
}
