package jinja

import "fmt"

// construct names a statement or expression for messages, as a template writes it; empty for nil.
func construct(at node) string {
	switch n := at.(type) {
	case *textStmt:
		return "text"
	case *printStmt:
		return "print"
	case *ifStmt:
		return "if"
	case *forStmt:
		return "for"
	case *setStmt, *setBlockStmt:
		return "set"
	case *macroStmt:
		return "macro"
	case *callStmt:
		return "call"
	case *filterStmt:
		return "filter block"
	case *generationStmt:
		return "generation"
	case *withStmt:
		return "with"
	case *breakStmt:
		return "break"
	case *continueStmt:
		return "continue"
	case *binaryExpr:
		return "operator " + n.op
	case *signExpr:
		return "sign"
	case *compareExpr:
		return "comparison"
	case *concatExpr:
		return "operator ~"
	case *attrExpr:
		return fmt.Sprintf("attribute %.40s", n.attr)
	case *itemExpr, *sliceExpr:
		return "subscript"
	case *callExpr:
		return "call" + called(n.function)
	case *filterExpr:
		return fmt.Sprintf("filter %.40s", n.name)
	case *testExpr:
		return fmt.Sprintf("test %.40s", n.name)
	case *tupleExpr, *listExpr:
		return "list"
	case *dictExpr:
		return "dictionary"
	}
	return ""
}

// called is the name of what a call calls, where that has one.
func called(function expr) string {
	switch f := function.(type) {
	case *nameExpr:
		return fmt.Sprintf(" of %.40s", f.name)
	case *attrExpr:
		return fmt.Sprintf(" of %.40s", f.attr)
	}
	return ""
}

// checkDepth refuses expressions whose tree is deeper than maxTreeDepth: evaluating a level takes stack.
func checkDepth(body []stmt) {
	for _, st := range body {
		for _, e := range expressionsOf(st) {
			checkTree(e, 0)
		}
		for _, inner := range bodiesOf(st) {
			checkDepth(inner)
		}
	}
}

func checkTree(e expr, depth int) {
	if e == nil {
		return
	}
	if depth > maxTreeDepth {
		syntaxFault(e.lineNo(), "an expression is nested deeper than %d", maxTreeDepth)
	}
	for _, child := range children(e) {
		checkTree(child, depth+1)
	}
}

// expressionsOf are the expressions that a statement holds itself.
func expressionsOf(st stmt) []expr {
	filtered := func(f *filterExpr) []expr {
		if f == nil {
			return nil
		}
		return []expr{f}
	}
	switch st := st.(type) {
	case *printStmt:
		return []expr{st.value}
	case *ifStmt:
		return st.tests
	case *forStmt:
		return []expr{st.iterable, st.test}
	case *setStmt:
		return []expr{st.value}
	case *setBlockStmt:
		return filtered(st.filter)
	case *macroStmt:
		return st.macro.defaults
	case *callStmt:
		return append([]expr{st.call}, st.macro.defaults...)
	case *filterStmt:
		return filtered(st.filter)
	case *withStmt:
		return st.values
	}
	return nil
}

// bodiesOf are the bodies within a statement.
func bodiesOf(st stmt) [][]stmt {
	switch st := st.(type) {
	case *ifStmt:
		return append(append([][]stmt{}, st.bodies...), st.otherwise)
	case *forStmt:
		return [][]stmt{st.body, st.otherwise}
	case *setBlockStmt:
		return [][]stmt{st.body}
	case *macroStmt:
		return [][]stmt{st.macro.body}
	case *callStmt:
		return [][]stmt{st.macro.body}
	case *generationStmt:
		return [][]stmt{st.macro.body}
	case *filterStmt:
		return [][]stmt{st.body}
	case *withStmt:
		return [][]stmt{st.body}
	}
	return nil
}
