module example/layout

go 1.17
