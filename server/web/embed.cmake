# SPDX-License-Identifier: Apache-2.0
#
# Writes a C file that holds the page. Run as: cmake -D PAGE=folder -D OUT=page.c -P embed.cmake
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(arrays "")
set(rows "")
foreach(name index.html page.css data.js plot.js page.js icon.svg)
    string(MAKE_C_IDENTIFIER "${name}" symbol)
    string(REGEX REPLACE "^.*\\." "" extension "${name}")
    string(REGEX REPLACE "^/index\\.html$" "/" path "/${name}")
    file(READ "${PAGE}/${name}" hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(APPEND arrays "static const unsigned char ${symbol}[] = {${bytes}};\n")
    string(APPEND rows "    {\"${path}\", \"${type_${extension}}\", sizeof(${symbol}), ${symbol}},\n")
endforeach()
file(WRITE "${OUT}" "#include \"web/page_files.h\"\n\n${arrays}\nconst struct http_file page_files[] = {\n${rows}};\n"
                    "const size_t page_file_count = sizeof(page_files) / sizeof(page_files[0]);\n")
