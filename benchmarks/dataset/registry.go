package dataset

// Formats are the data sets that can be imported, one line each.
var Formats = []*Format{
	sweBench,
	sweBenchLite,
	sweBenchVerified,
	sweBenchMultilingual,
	sweBenchPro,
	sweRebench,
	sweRebenchV2,
	sweGym,
	sweSmith,
	r2eGym,
	nl2Repo,
	beyondSWE,
	deNovoSWE,
	harbor,
}
