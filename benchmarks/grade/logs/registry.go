package logs

import (
	"maps"
	"slices"
	"strings"

	"github.com/milepost-rl/milepost"
)

// Task is what some parsers need to know besides the log.
type Task struct {
	InstanceID string // as in the data set, "jekyll__jekyll-9141"
	Version    string // the data set's version of the repository, "1.27"
}

// parser reads one log into r. An error says, in words, where the log is not what the parser needs.
type parser func(log string, t Task, r *Results) error

// byName holds every parser under the name that data sets use (log_parser of SWE-bench rows since 5.x).
var byName = map[string]parser{
	"parse_log_pytest":         parsePytest,
	"parse_log_pytest_options": parsePytestOptions,
	"parse_log_pytest_v2":      parsePytestV2,
	"parse_log_django":         parseDjango,
	"parse_log_seaborn":        parseSeaborn,
	"parse_log_sympy":          parseSympy,
	"parse_log_matplotlib":     parseMatplotlib,
	"parse_log_astroid":        parsePytest,
	"parse_log_flask":          parsePytest,
	"parse_log_marshmallow":    parsePytest,
	"parse_log_pvlib":          parsePytest,
	"parse_log_pyvista":        parsePytest,
	"parse_log_sqlfluff":       parsePytest,
	"parse_log_xarray":         parsePytest,
	"parse_log_pydicom":        parsePytestOptions,
	"parse_log_requests":       parsePytestOptions,
	"parse_log_pylint":         parsePytestOptions,
	"parse_log_astropy":        parsePytestV2,
	"parse_log_scikit":         parsePytestV2,
	"parse_log_sphinx":         parsePytestV2,

	"parse_log_calypso":      parseCalypso,
	"parse_log_bpmn_js":      parseBPMN,
	"parse_log_carbon":       parseSuites,
	"parse_log_eslint":       parseESLint,
	"parse_log_grommet":      parseGrommet,
	"parse_log_highlightjs":  parseHighlightJS,
	"parse_log_lighthouse":   parseLighthouse,
	"parse_log_next":         parseNext,
	"parse_log_openlayers":   parseOpenLayers,
	"parse_log_prismjs":      parsePrism,
	"parse_log_quarto_cli":   parseQuarto,
	"parse_log_chart_js":     parseChartJS,
	"parse_log_marked":       parseMarked,
	"parse_log_p5js":         parseP5JS,
	"parse_log_react_pdf":    parseSuites,
	"parse_log_jest":         parseJest,
	"parse_log_jest_json":    parseJestJSON,
	"parse_log_vitest":       parseVitest,
	"parse_log_karma":        parseKarma,
	"parse_log_tap":          parseTAP,
	"parse_log_immutable_js": parseImmutable,
	// The referee reaches these by repository only.
	"parse_log_emotion":     parseEmotion,
	"parse_log_cypress":     parseCypress,
	"parse_log_prettier":    parseSuites,
	"parse_log_scratch_gui": parseSuites,
	"parse_plotly_js":       parsePlotly,

	"parse_log_redis":            parseRedis,
	"parse_log_jq":               parseJQ,
	"parse_log_doctest":          parseDoctest,
	"parse_log_micropython_test": parseMicropython,
	"parse_log_googletest":       parseGoogleTest,
	"parse_log_gotest":           parseGoTest,
	"parse_log_cargo":            parseCargo,

	"parse_log_maven":         parseMaven,
	"parse_log_ant":           parseAnt,
	"parse_log_gradle_custom": parseGradle,

	"parse_log_phpunit":                parsePHPUnit,
	"parse_log_minitest":               parseMinitest,
	"parse_log_cucumber":               parseCucumber,
	"parse_log_ruby_unit":              parseRubyUnit,
	"parse_log_rspec_transformed_json": parseRSpec,
	"parse_log_jekyll":                 parseJekyll,

	// Of other data sets: what the referee does not have (pytest.go, rebench.go).
	"swesmith_python":       parseSmithPython,
	"r2e_pytest":            parseR2E,
	"rebench_pytest_v2":     parseRebenchPytestV2,
	"parse_log_pytest_nebo": parsePytestNebo,
	"parse_log_swift":       parseSwift,
	"parse_log_csharp":      parseCSharp,
}

// byRepo names the parser of a repository, for rows without log_parser (SWE-bench before 5.x, Multilingual, Multimodal,
// SWE-Gym, whose repositories all print pytest -rA).
var byRepo = map[string]string{
	"astropy/astropy": "parse_log_astropy", "django/django": "parse_log_django", "marshmallow-code/marshmallow": "parse_log_marshmallow",
	"matplotlib/matplotlib": "parse_log_matplotlib", "mwaskom/seaborn": "parse_log_seaborn", "pallets/flask": "parse_log_flask",
	"psf/requests": "parse_log_requests", "pvlib/pvlib-python": "parse_log_pvlib", "pydata/xarray": "parse_log_xarray",
	"pydicom/pydicom": "parse_log_pydicom", "pylint-dev/astroid": "parse_log_astroid", "pylint-dev/pylint": "parse_log_pylint",
	"pytest-dev/pytest": "parse_log_pytest", "pyvista/pyvista": "parse_log_pyvista", "scikit-learn/scikit-learn": "parse_log_scikit",
	"sqlfluff/sqlfluff": "parse_log_sqlfluff", "sphinx-doc/sphinx": "parse_log_sphinx", "sympy/sympy": "parse_log_sympy",

	"Automattic/wp-calypso": "parse_log_calypso", "chartjs/Chart.js": "parse_log_chart_js", "markedjs/marked": "parse_log_marked",
	"processing/p5.js": "parse_log_p5js", "diegomura/react-pdf": "parse_log_react_pdf", "babel/babel": "parse_log_jest",
	"vuejs/core": "parse_log_vitest", "facebook/docusaurus": "parse_log_jest", "immutable-js/immutable-js": "parse_log_immutable_js",
	"mrdoob/three.js": "parse_log_tap", "preactjs/preact": "parse_log_karma", "axios/axios": "parse_log_tap",
	"alibaba-fusion/next": "parse_log_next", "bpmn-io/bpmn-js": "parse_log_bpmn_js", "carbon-design-system/carbon": "parse_log_carbon",
	"cypress-io/cypress": "parse_log_cypress", "emotion-js/emotion": "parse_log_emotion", "eslint/eslint": "parse_log_eslint",
	"GoogleChrome/lighthouse": "parse_log_lighthouse", "grommet/grommet": "parse_log_grommet", "highlightjs/highlight.js": "parse_log_highlightjs",
	"openlayers/openlayers": "parse_log_openlayers", "plotly/plotly.js": "parse_plotly_js", "prettier/prettier": "parse_log_prettier",
	"PrismJS/prism": "parse_log_prismjs", "quarto-dev/quarto-cli": "parse_log_quarto_cli", "scratchfoundation/scratch-gui": "parse_log_scratch_gui",

	"redis/redis": "parse_log_redis", "jqlang/jq": "parse_log_jq", "nlohmann/json": "parse_log_doctest",
	"micropython/micropython": "parse_log_micropython_test", "valkey-io/valkey": "parse_log_redis", "fmtlib/fmt": "parse_log_googletest",
	"caddyserver/caddy": "parse_log_gotest", "hashicorp/terraform": "parse_log_gotest", "prometheus/prometheus": "parse_log_gotest",
	"gohugoio/hugo": "parse_log_gotest", "gin-gonic/gin": "parse_log_gotest",
	"burntsushi/ripgrep": "parse_log_cargo", "sharkdp/bat": "parse_log_cargo", "astral-sh/ruff": "parse_log_cargo",
	"tokio-rs/tokio": "parse_log_cargo", "uutils/coreutils": "parse_log_cargo", "nushell/nushell": "parse_log_cargo", "tokio-rs/axum": "parse_log_cargo",

	"google/gson": "parse_log_maven", "apache/druid": "parse_log_maven", "javaparser/javaparser": "parse_log_maven",
	"projectlombok/lombok": "parse_log_ant", "apache/lucene": "parse_log_gradle_custom", "reactivex/rxjava": "parse_log_gradle_custom",

	"phpoffice/phpspreadsheet": "parse_log_phpunit", "laravel/framework": "parse_log_phpunit",
	"php-cs-fixer/php-cs-fixer": "parse_log_phpunit", "briannesbitt/carbon": "parse_log_phpunit",
	"jekyll/jekyll": "parse_log_jekyll", "fluent/fluentd": "parse_log_ruby_unit", "fastlane/fastlane": "parse_log_rspec_transformed_json",
	"jordansissel/fpm": "parse_log_rspec_transformed_json", "faker-ruby/faker": "parse_log_ruby_unit", "rubocop/rubocop": "parse_log_rspec_transformed_json",
}

// Names returns the names of every parser, sorted.
func Names() []string { return slices.Sorted(maps.Keys(byName)) }

// Known reports whether there is a parser of this name.
func Known(name string) bool { _, ok := byName[name]; return ok }

// ForRepo returns the name of the parser of a repository ("owner/name", in any case), and whether there is one.
func ForRepo(repo string) (string, bool) {
	if name, ok := byRepo[repo]; ok {
		return name, true
	}
	for r, name := range byRepo {
		if strings.EqualFold(r, repo) {
			return name, true
		}
	}
	return "", false
}

// Parse reads the log of a task, as [ReadText] gives it, with the parser of the given name. Kinds: invalid for a name
// there is no parser of, and for a log the parser cannot read; limit for more than [MaxResults] tests.
func Parse(name, log string, t Task) (*Results, error) {
	const op = "logs: parse"
	p, ok := byName[name]
	if !ok {
		return nil, milepost.E(op, milepost.KindInvalid, "log parser %q is not one of %s", name, strings.Join(Names(), ", "))
	}
	var r Results
	if err := p(log, t, &r); err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%s: %w", name, err)
	}
	if r.full {
		return nil, milepost.E(op, milepost.KindLimit, "the log names more than %d tests", MaxResults)
	}
	return &r, nil
}
